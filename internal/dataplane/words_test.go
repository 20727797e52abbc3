package dataplane

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/bound"
)

// A message names 5 things at most, and counts the others.
func TestSomeIsBounded(t *testing.T) {
	bound.Check(t, "names", 5, func(n int) []string {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("name", i)
		}
		return strings.FieldsFunc(strings.Replace(Some(5, names), " and ", ",", 1), func(r rune) bool { return r == ',' })
	})
}
