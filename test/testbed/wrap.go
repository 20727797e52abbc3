//go:build linux

package testbed

import (
	"os"
	"slices"
	"strings"
)

// Wrapped returns the command line of a program under test, behind the words of the environment variable NKP_WRAP: a
// program that restricts itself and then runs the rest by exec, such as test/deploy/confine. Without NKP_WRAP it is
// argv.
func Wrapped(argv ...string) []string {
	return slices.Concat(strings.Fields(os.Getenv("NKP_WRAP")), argv)
}
