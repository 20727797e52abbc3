// Package bound checks that a list which names a few things and counts the others is cut where it must be.
package bound

import (
	"regexp"
	"testing"
)

var number = regexp.MustCompile(`\b7\b`)

// Check calls list with the number of things to list: most, of which list must return one line each, and 7 more, of which it must
// return as many lines, and a last one with the number of the others. most is written out in the test: a constant of the program
// would follow a change of it.
func Check(t *testing.T, what string, most int, list func(n int) []string) {
	t.Helper()
	for _, more := range []int{0, 7} {
		got := list(most + more)
		want := most + min(more, 1)
		if len(got) != want || more > 0 && !number.MatchString(got[want-1]) {
			t.Errorf("%s: of %d, %d are named: %q; want %d, and the number of the others", what, most+more, len(got), got, most)
		}
	}
}
