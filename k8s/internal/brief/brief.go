// Package brief shortens foreign text for messages: a bad value, or an error of a library or a server, must
// never fill a log, an Event or a status line.
package brief

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds in bytes.
const (
	maxQuoted = 48  // of a bad value that is repeated in a message
	maxLine   = 200 // of a message that comes from elsewhere
)

// Quote returns s in quotes, cut short if it is long.
func Quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return strconv.Quote(Cut(s, maxQuoted)) + "..."
}

// Line returns s as one short line.
func Line(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxLine {
		return s
	}
	return Cut(s, maxLine) + "..."
}

// Cut returns at most the first n bytes of s, fewer if a character would be split.
func Cut(s string, n int) string {
	if n >= len(s) {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
