//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/command"
)

// Every command that is listed has a page with its options and examples, and the date is that of the sources.
func TestPages(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, cmd := range command.Commands() {
		if cmd.Hidden {
			continue
		}
		text := read("man/nkp-" + cmd.Name() + ".8")
		for _, want := range []string{".SH NAME", ".SH OPTIONS", ".SH EXAMPLE", "Nov 2023", "nkp(8)", ".SH EXIT STATUS\n", ".SH FILES\n.TP\n\\fB/run/nkp/nkp.sock\\fP\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("nkp-%s.8 lacks %q", cmd.Name(), want)
			}
		}
	}
	// Sections that cobra does not write, and in them only what the command uses.
	for name, want := range map[string]string{
		"nkp":         "KUBERNETES_SERVICE_HOST",
		"nkp-run":     "/etc/nkp/config.yaml",
		"nkp-status":  "0 in step (\\-\\-strict: and nothing is wrong), 1 not, 2 no agent answered. A wrong command line: 2.",
		"nkp-diff":    "0 equal, 1 different, 2 error. A wrong command line: 2.",
		"nkp-version": "0 done, 1 it failed, for the reason on standard error, 2 the command line is wrong.",
	} {
		if text := read("man/" + name + ".8"); !strings.Contains(text, want) {
			t.Errorf("%s.8 lacks %q", name, want)
		}
	}
	if text := read("man/nkp-status.8"); strings.Contains(text, "NOTIFY_SOCKET") || strings.Contains(text, "ncp.ini\n") {
		t.Errorf("nkp-status.8 has files or variables of other commands:\n%s", text)
	}
	if text := read("man/nkp-plan.8"); !strings.Contains(text, "\n  ofctl     input for") {
		t.Errorf("the list of outputs is no list:\n%.1500s", text)
	}
	if text := read("man/nkp-run.8"); !strings.Contains(text, `%ProgramData%\\nkp\\hns.json`) {
		t.Error("a path has lost its backslashes")
	}
	for shell, want := range map[string]string{"bash": "__start_nkp", "zsh": "#compdef nkp", "fish": "complete -c nkp"} {
		if text := read("completions/nkp." + shell); !strings.Contains(text, want) {
			t.Errorf("the completion of %s lacks %q", shell, want)
		}
	}
}
