package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The window, in characters, and the size of one, in pixels.
const (
	columns, rows = 122, 32
	charWidth     = 7.2
	charHeight    = 16
	margin        = 14
	bar           = 30 // above the text
)

// Pauses in seconds: after a line, before a heading, and at the end.
const (
	perLine    = 0.08
	perHeading = 3.5
	atEnd      = 8.0
)

// span is text in one style.
type span struct{ style, text string }

// line is what the program printed in one line.
type line []span

func (l line) heading() bool { return len(l) > 0 && strings.HasPrefix(l[0].text, "[") }

var sgr = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// styles are the classes of the SGR parameters that the demo uses (ECMA-48 8.3.117).
var styles = map[string]string{"1": "b", "2": "d", "32": "g", "36": "c"}

// lines splits what was printed into lines and styles. Lines longer than the window are cut.
func lines(printed string) (out []line) {
	for text := range strings.Lines(strings.ReplaceAll(printed, "\r", "")) {
		var l line
		style, room := "", columns
		add := func(s string) {
			if n := utf8.RuneCountInString(s); n > room {
				s = string([]rune(s)[:room])
			}
			if s != "" {
				l = append(l, span{style, s})
			}
			room -= utf8.RuneCountInString(s)
		}
		text = strings.TrimRight(text, "\n")
		for {
			at := sgr.FindStringSubmatchIndex(text)
			if at == nil {
				add(text)
				break
			}
			add(text[:at[0]])
			style, text = styles[text[at[2]:at[3]]], text[at[1]:]
		}
		out = append(out, l)
	}
	return out
}

// draw returns the animation. Two steps make it: the text moves up under the window, and a cover moves down off the text.
// A viewer that does not animate shows the first window.
func draw(title string, text []line) []byte {
	var total float64
	at := make([]float64, len(text)) // when a line appears
	for i, l := range text {
		if total += perLine; l.heading() {
			total += perHeading
		}
		at[i] = total
	}
	total += atEnd
	var scroll, cover strings.Builder
	for i := range text {
		percent := 100 * at[i] / total
		fmt.Fprintf(&cover, "%.2f%%{transform:translateY(%dpx)}", percent, (i+1)*charHeight)
		if hidden := i + 1 - rows; hidden > 0 {
			fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%dpx)}", percent, -hidden*charHeight)
		}
	}
	width, height := columns*charWidth+2*margin, rows*charHeight+bar+2*margin

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 %.0f %d" width="%.0f" height="%d">
<title>%s</title>
<style>
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace;fill:#c9d1d9;white-space:pre}
.b{font-weight:bold;fill:#fff}.d{fill:#8b949e}.g{fill:#3fb950}.c{fill:#39c5cf}
.scroll{animation:scroll %.1fs step-end infinite}.cover{transform:translateY(%dpx);animation:cover %.1fs step-end infinite}
@media (prefers-reduced-motion:reduce){.scroll,.cover{animation:none}}
@keyframes scroll{0%%{transform:none}%s}
@keyframes cover{0%%{transform:none}%s}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
<circle cx="18" cy="15" r="5" fill="#ff5f56"/><circle cx="36" cy="15" r="5" fill="#ffbd2e"/><circle cx="54" cy="15" r="5" fill="#27c93f"/>
<text x="76" y="19" class="d">$ %s</text>
<svg x="%d" y="%d" width="%.0f" height="%d">
<g class="scroll">
`, width, height, width, height, escape(title), total, len(text)*charHeight, total, scroll.String(), cover.String(), escape(title),
		margin, bar+margin, columns*charWidth, rows*charHeight)
	for i, l := range text {
		if len(l) > 0 {
			writeLine(&b, l, (i+1)*charHeight-4)
		}
	}
	fmt.Fprintf(&b, `<rect class="cover" width="100%%" height="%d" fill="#0d1117"/>
</g>
</svg>
</svg>
`, (len(text)+rows)*charHeight)
	return b.Bytes()
}

// writeLine writes a line with its width, so that columns stay in line in any font.
func writeLine(b *bytes.Buffer, l line, y int) {
	n := 0
	var spans strings.Builder
	for _, s := range l {
		n += utf8.RuneCountInString(s.text)
		if s.style == "" {
			spans.WriteString(escape(s.text))
		} else {
			fmt.Fprintf(&spans, `<tspan class="%s">%s</tspan>`, s.style, escape(s.text))
		}
	}
	fmt.Fprintf(b, `<text y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs">%s</text>`+"\n", y, float64(n)*charWidth, spans.String())
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // fails only if the Buffer does
	return b.String()
}
