package k8s

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxQuoted bounds what is repeated of a bad value, so that a message never echoes a file.
const maxQuoted = 48

// quote puts text into quotes for a message, cut short if it is long.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return strconv.Quote(cut(s, maxQuoted)) + "..."
}

// brief makes one short line of a message that comes from elsewhere.
func brief(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= 200 {
		return s
	}
	return cut(s, 200) + "..."
}

// cut gives at most the first n bytes of s, less if a character would be split.
func cut(s string, n int) string {
	if n >= len(s) {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
