package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that SECURITY.md names is there.
func TestSecurityNamesTests(t *testing.T) {
	text, err := os.ReadFile("SECURITY.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## What holds this\n")
	named := 0
	for line := range strings.Lines(section) {
		folder := ""
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
			if !regexp.MustCompile(`^(Test|Fuzz)[A-Z]\w*$`).MatchString(m[1]) {
				folder = m[1]
				continue
			}
			files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Errorf("no tests in %q, of %s", folder, m[1])
			}
			found := false
			for _, f := range files {
				code, err := os.ReadFile(f)
				must(t, err)
				found = found || strings.Contains(string(code), "\nfunc "+m[1]+"(")
			}
			if !found {
				t.Errorf("%s is not in %s", m[1], folder)
			}
			named++
		}
	}
	if named < 20 {
		t.Errorf("only %d tests are named", named)
	}
}
