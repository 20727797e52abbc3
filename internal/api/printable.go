package api

import (
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// printable returns a text, or one in JSON, without characters that a terminal could interpret or that hide
// others.
func printable(text []byte) []byte {
	keep := func(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == '\\' && len(text) > 1 {
			switch size = 2; text[1] { // the escapes of JSON (RFC 8259, 7)
			case 'b', 'f', 'r':
				r = utf8.RuneError
			case 'u':
				digits := string(text[2:min(6, len(text))])
				if n, err := strconv.ParseUint(digits, 16, 16); err == nil && len(text) >= 6 {
					if size = 6; !keep(rune(n)) && !utf16.IsSurrogate(rune(n)) {
						r = utf8.RuneError
					}
				}
			}
		} else if !keep(r) {
			r = utf8.RuneError
		}

		if r == utf8.RuneError {
			out = utf8.AppendRune(out, r)
		} else {
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return out
}
