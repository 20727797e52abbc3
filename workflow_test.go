package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Actions are pinned by commit, so that a moved tag of another project does not run in this one's workflows.
func TestActionsArePinned(t *testing.T) {
	files, err := filepath.Glob(".github/workflows/*.yml")
	must(t, err)
	found := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		must(t, err)
		for _, m := range regexp.MustCompile(`(?m)uses: *(.*)$`).FindAllStringSubmatch(string(text), -1) {
			found++
			if !regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v[0-9.]+$`).MatchString(m[1]) {
				t.Errorf("%s: %s is not pinned by commit, with its version in a comment", f, m[1])
			}
		}
	}
	if found < 3 {
		t.Errorf("%d actions in %q", found, files)
	}
}

// A release's page has its section of the changelog and no other, with links that lead to the tag's files. What is not released
// yet, or is not there, has no page.
func TestReleaseNotes(t *testing.T) {
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	text := "# Changelog\n\n## 0.2.0 (not released yet)\n\n- new\n\n## 0.1.0 (2026-01-02)\n\n### Commands\n- see [docs](docs/ui.md) and [deploy](deploy/README.md#metrics)\n- [elsewhere](https://example.com/x)\n\n## 0.0.10 (2026-01-01)\n\n- old\n"
	must(t, os.WriteFile(changelog, []byte(text), 0o644))
	const at = "https://github.com/nkp-proxy/nkp/blob/v0.1.0/"
	want := "\n### Commands\n- see [docs](" + at + "docs/ui.md) and [deploy](" + at + "deploy/README.md#metrics)\n- [elsewhere](https://example.com/x)\n"
	if out, err := exec.Command("deploy/package/notes", "v0.1.0", changelog).CombinedOutput(); err != nil || string(out) != want {
		t.Errorf("v0.1.0: %v: %q, want %q", err, out, want)
	}
	for tag, reason := range map[string]string{"v0.2.0": "not released yet", "v0.1": "no section 0.1", "v0.0.1": "no section"} {
		if out, err := exec.Command("deploy/package/notes", tag, changelog).CombinedOutput(); err == nil || !strings.Contains(string(out), reason) {
			t.Errorf("%s: %v: %s, want an error: %s", tag, err, out, reason)
		}
	}
	// The project's own: a section that is not released yet is refused, any other has a page.
	own, err := os.ReadFile("CHANGELOG.md")
	must(t, err)
	m := regexp.MustCompile(`(?m)^## ([0-9.]+)(.*)$`).FindStringSubmatch(string(own))
	if m == nil {
		t.Fatal("CHANGELOG.md has no version")
	}
	out, err := exec.Command("deploy/package/notes", "v"+m[1]).CombinedOutput()
	if unreleased := strings.Contains(m[2], "not released yet"); unreleased == (err == nil) || err == nil && !strings.Contains(string(out), "### ") {
		t.Errorf("v%s%s: %v: %s", m[1], m[2], err, out)
	}
}
