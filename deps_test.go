//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// OVN's packages are fetched for the target that uses them, and the demo fetches nothing that it does not run.
func TestInstallDepsFetchesWhatIsAskedFor(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".ci/install-deps", ".ci/go", "go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), text, 0o755))
	}
	// A machine where everything is installed, but for what the tests of the data planes need, and an apt that notes its arguments.
	programs := filepath.Join(dir, "programs")
	must(t, os.Mkdir(programs, 0o755))
	asked := filepath.Join(dir, "asked")
	for name, does := range map[string]string{"apt-get": `echo "$@" >>` + asked, "dpkg": "", "id": "echo 0", "sed": `exec /bin/sed "$@"`,
		"ovs-vswitchd": "", "ovsdb-server": "", "ip": "", "git": "", "go": "", "ls": "echo modules", "mkdir": `exec /bin/mkdir "$@"`,
		"rm": "", "touch": "", "dirname": `exec /usr/bin/dirname "$@"`} {
		must(t, os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+does+"\n"), 0o755))
	}
	script, err := os.ReadFile(filepath.Join(dir, ".ci/install-deps"))
	must(t, err)
	script = regexp.MustCompile(`(?m)^PATH=.*$`).ReplaceAll(script, nil) // nothing of this machine's
	must(t, os.WriteFile(filepath.Join(dir, ".ci/install-deps"), script, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, ".ci/go"), []byte("#!/bin/sh\n"), 0o755))

	for argument, want := range map[string][2]string{ // what is fetched, and what is not
		"demo": {"", "nftables iptables ethtool procps ovn"},
		"":     {"nftables iptables ethtool procps", "ovn"},
		"ovn":  {"nftables iptables ethtool procps ovn-central ovn-host", ""},
	} {
		os.Remove(asked)
		cmd := exec.Command("/bin/sh", filepath.Join(dir, ".ci/install-deps"), argument)
		cmd.Env = []string{"PATH=" + programs, "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("install-deps %s: %v: %s", argument, err, out)
		}
		text, _ := os.ReadFile(asked)
		for name := range strings.FieldsSeq(want[0]) {
			if !strings.Contains(string(text), name) {
				t.Errorf("install-deps %s does not fetch %s: %s", argument, name, text)
			}
		}
		for name := range strings.FieldsSeq(want[1]) {
			if strings.Contains(string(text), name) {
				t.Errorf("install-deps %s fetches %s: %s", argument, name, text)
			}
		}
	}
	makefile, err := os.ReadFile("Makefile")
	must(t, err)
	if demo := regexp.MustCompile(`(?m)^demo:(.*)##.*\n\t@(.*)$`).FindSubmatch(makefile); demo == nil || strings.TrimSpace(string(demo[1])) != "" || string(demo[2]) != ".ci/install-deps demo" {
		t.Errorf("make demo does not begin with install-deps demo: %s", demo)
	}
}
