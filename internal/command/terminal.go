package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// terminalSize returns the columns and rows of the terminal that w is; ok is false if it is none, or its size
// is not known.
func terminalSize(w io.Writer) (width, height int, ok bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	return width, height, err == nil && width > 0 && height > 0
}

// redraws reports whether frames on w replace each other. A Windows console interprets escape codes only in a
// mode of its own.
func redraws(w io.Writer) bool {
	_, _, ok := terminalSize(w)
	return ok && runtime.GOOS != "windows"
}

// Control sequences of ECMA-48.
const (
	clearScreen = "\x1b[2J"
	cursorHome  = "\x1b[H"
	clearToEOL  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// frame returns text as one screen of a terminal: lines cut at width, and at most height-1 of them, so that
// nothing scrolls.
func frame(text string, width, height int) []byte {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if room := max(height-1, 1); len(lines) > room {
		hidden := len(lines) - room + 1
		lines = append(lines[:room-1:room-1], fmt.Sprintf("... %d more lines", hidden))
	}
	var b bytes.Buffer
	b.WriteString(cursorHome)
	for _, line := range lines {
		printed := []rune(strings.Map(printable, line))
		b.WriteString(string(printed[:min(len(printed), width)]) + clearToEOL + "\n")
	}
	b.WriteString(clearBelow)
	return b.Bytes()
}

// printable drops what a terminal could interpret.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return -1
}
