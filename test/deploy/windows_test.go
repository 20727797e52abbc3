//go:build linux

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// nkpCommand is a command line of nkp in a text: its command, and the rest of the line.
var (
	nkpCommand = regexp.MustCompile("(?:^|[^-/\\w])nkp(?:\\.exe|-windows-amd64\\.exe)? (run|plan|diff|status|services|trace|cleanup|version|windows-service (?:install|upgrade|uninstall|status))\\b([^`\"|#]*)")
	flagName   = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z0-9-]*)`)
	folder     = regexp.MustCompile(`kubectl (?:apply|delete|diff|kustomize)[^\n]* -k (\S+)`)
	argsLine   = regexp.MustCompile(`(?m)NKP_ARGS="([^"]*)"`)
)

// commandTexts are what users copy commands from.
func commandTexts(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../../docs/migration.md", "../../docs/nsx.md", "../../docs/operate/*.md", "../../deploy/*.md", "../../deploy/*/*.md", "../../deploy/systemd/*"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			must(t, err)
			texts[f] = string(text)
		}
	}
	if len(texts) < 4 {
		t.Fatalf("only %d texts", len(texts))
	}
	return texts
}

// Every command and flag of nkp that guides and units name exists, and so does every folder of manifests.
func TestCommandsExist(t *testing.T) {
	bin := distFile(t, "nkp-linux-amd64")
	help := map[string]string{}
	check := func(file, command, line string) {
		if help[command] == "" {
			help[command] = mustRun(t, append(append([]string{bin}, strings.Fields(command)...), "--help")...)
		}
		own, passed, _ := strings.Cut(line, " -- ")
		for _, m := range flagName.FindAllStringSubmatch(own, -1) {
			if !regexp.MustCompile(`\s` + m[1] + `\s`).MatchString(help[command]) {
				t.Errorf("%s: nkp %s has no flag %s", file, command, m[1])
			}
		}
		if passed != "" { // windows-service install: flags of run
			if help["run"] == "" {
				help["run"] = mustRun(t, bin, "run", "--help")
			}
			for _, m := range flagName.FindAllStringSubmatch(" "+passed, -1) {
				if !strings.Contains(help["run"], m[1]+" ") {
					t.Errorf("%s: nkp run has no flag %s", file, m[1])
				}
			}
		}
	}
	commands, folders := 0, 0
	for file, text := range commandTexts(t) {
		for _, m := range nkpCommand.FindAllStringSubmatch(text, -1) {
			rest, _, _ := strings.Cut(m[2], "\n")
			check(file, m[1], rest)
			commands++
		}
		for _, m := range argsLine.FindAllStringSubmatch(text, -1) {
			check(file, "run", " "+m[1])
			commands++
		}
		for _, m := range folder.FindAllStringSubmatch(text, -1) {
			folders++
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "my-") {
				continue
			}
			if _, err := os.Stat(filepath.Join("../..", m[1], "kustomization.yaml")); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	t.Logf("%d commands of nkp, %d folders of manifests", commands, folders)
	if commands < 10 || folders < 3 {
		t.Error("these are too few: are they still found?")
	}
}
