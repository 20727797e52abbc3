//go:build linux

package packets

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every alert leads to its own section of docs/operate/alerts.md, and no section is left over.
func TestAlertsPage(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/prometheus/rules.yaml")
	must(t, err)
	page, err := os.ReadFile("../../docs/operate/alerts.md")
	must(t, err)
	alerts := map[string]bool{}
	for _, m := range regexp.MustCompile(`- alert: (\w+)\n(?s:.*?)runbook_url: (\S+)\n`).FindAllStringSubmatch(string(rules), -1) {
		alerts[m[1]] = true
		if _, anchor, _ := strings.Cut(m[2], "/docs/operate/alerts.md#"); anchor != strings.ToLower(m[1]) {
			t.Errorf("alert %s leads to %s", m[1], m[2])
		}
		if !strings.Contains(string(page), "\n## "+m[1]+"\n") {
			t.Errorf("the page of alerts has no section %s", m[1])
		}
	}
	if len(alerts) < 15 {
		t.Errorf("only %d alerts were found", len(alerts))
	}
	for _, m := range regexp.MustCompile(`(?m)^## (Nkp\w+)$`).FindAllStringSubmatch(string(page), -1) {
		if !alerts[m[1]] {
			t.Errorf("the page of alerts has a section %s, which is no alert", m[1])
		}
	}
}
