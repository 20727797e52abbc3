package report

import (
	"strings"
	"unicode/utf8"
)

// Table is a table with a title above it and remarks below.
type Table struct {
	Title   string
	Header  []string
	Rows    [][]string
	Remarks string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Text returns the table for a terminal. The first column stands left, all others right.
func Text(t Table) string {
	width := make([]int, len(t.Header))
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	b.WriteString("\n" + t.Title + "\n")
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i == 0 {
				b.WriteString("  " + c + pad)
			} else {
				b.WriteString("  " + pad + c)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Markdown returns the table for a document.
func Markdown(t Table) string {
	var b strings.Builder
	if t.Title != "" {
		b.WriteString("### " + t.Title + "\n\n")
	}
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.Header)
	b.WriteString("|---" + strings.Repeat("|--:", len(t.Header)-1) + "|\n")
	for _, row := range t.Rows {
		line(row)
	}
	if t.Remarks != "" {
		b.WriteString("\n" + t.Remarks + "\n")
	}
	return b.String()
}
