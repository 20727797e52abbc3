// Package report turns measurements into what people read: tables as text and as Markdown, plots as SVG, the machine's
// facts, and how a cost grows.
package report
