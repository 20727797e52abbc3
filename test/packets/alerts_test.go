//go:build linux

package packets

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every alert leads to its own section of the runbook, and no section is left over.
func TestRunbook(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/prometheus/rules.yaml")
	must(t, err)
	book, err := os.ReadFile("../../docs/runbook.md")
	must(t, err)
	alerts := map[string]bool{}
	for _, m := range regexp.MustCompile(`- alert: (\w+)\n(?s:.*?)runbook_url: (\S+)\n`).FindAllStringSubmatch(string(rules), -1) {
		alerts[m[1]] = true
		if _, anchor, _ := strings.Cut(m[2], "/docs/runbook.md#"); anchor != strings.ToLower(m[1]) {
			t.Errorf("alert %s leads to %s", m[1], m[2])
		}
		if !strings.Contains(string(book), "\n## "+m[1]+"\n") {
			t.Errorf("the runbook has no section %s", m[1])
		}
	}
	if len(alerts) < 15 {
		t.Errorf("only %d alerts were found", len(alerts))
	}
	for _, m := range regexp.MustCompile(`(?m)^## (Nkp\w+)$`).FindAllStringSubmatch(string(book), -1) {
		if !alerts[m[1]] {
			t.Errorf("the runbook has a section %s, which is no alert", m[1])
		}
	}
}
