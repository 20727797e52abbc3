package brief

import (
	"strings"
	"testing"
)

// Texts are repeated up to the bounds, and cut beyond, between two characters.
func TestBounds(t *testing.T) {
	for what, tc := range map[string]struct {
		shorten func(string) string
		most    int
		quotes  string
	}{"a value": {Quote, 48, `"`}, "a line": {Line, 200, ""}} {
		fits := strings.Repeat("x", tc.most)
		for text, want := range map[string]string{
			fits:                         tc.quotes + fits + tc.quotes,
			fits + "x":                   tc.quotes + fits + tc.quotes + "...",
			fits[1:] + "é":               tc.quotes + fits[1:] + tc.quotes + "...",
			strings.Repeat(fits, 10_000): tc.quotes + fits + tc.quotes + "...",
		} {
			if got := tc.shorten(text); got != want {
				t.Errorf("%s of %d bytes: %d bytes, %.300q", what, len(text), len(got), got)
			}
		}
	}
}
