//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const barWidth = 30

// screen prints the story. It is used by one goroutine.
type screen struct {
	out    io.Writer
	start  time.Time
	colour bool
	block  string
	step   int
	title  string // of the current step
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out, start: time.Now(), block: "#"}
	if f, ok := out.(*os.File); ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		s.colour = err == nil
	}
	locale := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	if strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8") {
		s.block = "█"
	}
	return s
}

// The colours used, as parameters of ECMA-48 SGR.
const (
	bold  = "1"
	dim   = "2"
	green = "32"
	cyan  = "36"
)

func (s *screen) paint(how, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + how + "m" + text + "\x1b[0m"
}

func (s *screen) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

// begin starts the next step.
func (s *screen) begin(format string, args ...any) {
	s.step++
	s.title = fmt.Sprintf(format, args...)
	stamp := fmt.Sprintf("[%5.2f s]", time.Since(s.start).Seconds())
	s.printf("\n%s %s\n", s.paint(dim, stamp), s.paint(bold, fmt.Sprintf("%d  %s", s.step, s.title)))
}

// say prints a line of a step.
func (s *screen) say(format string, args ...any) { s.printf("  "+format+"\n", args...) }

// good prints a line about something that was checked and holds.
func (s *screen) good(format string, args ...any) {
	s.printf("  %s %s\n", s.paint(green, "ok"), fmt.Sprintf(format, args...))
}

// quote prints a command and what it said.
func (s *screen) quote(command, text string) {
	s.say("%s", s.paint(cyan, "$ "+command))
	for line := range strings.Lines(text) {
		s.say("%s", strings.TrimRight(line, "\n"))
	}
}

// bar is a line of a bar chart.
type bar struct {
	name, note string
	n          int
}

// bars prints a bar chart of counts.
func (s *screen) bars(list []bar) {
	most, sum, name, note := 1, 0, 0, 0
	for _, b := range list {
		most, sum = max(most, b.n), sum+b.n
		name, note = max(name, len(b.name)), max(note, len(b.note))
	}
	for _, b := range list {
		width := (b.n*barWidth + most/2) / most
		s.say("%-*s  %-*s  %s%s %5d  %3.0f %%", name, b.name, note, b.note,
			s.paint(cyan, strings.Repeat(s.block, width)), strings.Repeat(" ", barWidth-width),
			b.n, 100*float64(b.n)/float64(max(1, sum)))
	}
}

// table prints rows in columns; the first row is the heading.
func (s *screen) table(rows [][]string) {
	var widths []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len(cell))
		}
	}
	for i, r := range rows {
		var line strings.Builder
		for j, cell := range r {
			fmt.Fprintf(&line, "%-*s  ", widths[j], cell)
		}
		text := strings.TrimRight(line.String(), " ")
		if i == 0 {
			text = s.paint(bold, text)
		}
		s.say("%s", text)
	}
}

// milli writes a duration in milliseconds.
func milli(d time.Duration) string {
	ms := float64(d.Microseconds()) / 1000
	if ms >= 10 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}
