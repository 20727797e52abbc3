// Package golden compares what a test makes with a file of testdata. go test -update rewrites the files.
package golden

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the files that tests compare with")

// Check fails the test if got is not what the file has.
func Check(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(string(text), "\r\n", "\n") // as git has it on Windows
	if got != want {
		t.Errorf("%s differs (go test -update rewrites it, and git diff shows how); the first difference:\n%s",
			file, difference(got, want))
	}
}

// difference returns the first lines that differ.
func difference(got, want string) string {
	g, w := strings.SplitAfter(got, "\n"), strings.SplitAfter(want, "\n")
	for len(g) > 1 && len(w) > 1 && g[0] == w[0] {
		g, w = g[1:], w[1:]
	}
	return "got  " + g[0] + "\nwant " + w[0]
}
