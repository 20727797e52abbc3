//go:build linux

package windows

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
)

// notHere are the tests of hcsshim/hcn that cannot pass here, and why: none of v0.15.0.
var notHere = map[string]string{}

// The fake HNS passes the tests that Microsoft has for its own (hcsshim/hcn, tag integration), but for those in notHere. A listed test that passes fails this one, so that the list stays true.
func TestHcsshim(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "hcn.test.exe")
	if err := winebed.BuildWindowsTest("github.com/Microsoft/hcsshim/hcn", exe, "-tags", "integration"); err != nil {
		t.Fatal(err)
	}
	b := winebed.New(t, prefix, newest)
	list, err := b.Run(exe, "-test.list=.")
	if err != nil {
		t.Fatalf("%v\n%s", err, list)
	}
	out, _ := b.Run(exe, "-test.v") // it fails if one test fails
	passed, all := 0, strings.Fields(list)
	if len(all) < 20 {
		t.Errorf("hcsshim has %d tests only: %s", len(all), list)
	}
	for _, name := range all {
		pass := strings.Contains(out, "--- PASS: "+name+" ")
		switch reason := notHere[name]; {
		case pass && reason != "":
			t.Errorf("%s passes, and is listed: %s", name, reason)
		case !pass && reason == "":
			t.Errorf("%s does not pass:\n%s", name, section(out, name))
		}
		if pass {
			passed++
		}
		delete(notHere, name)
	}
	for name := range notHere {
		t.Errorf("%s is listed, and there is no such test", name)
	}
	t.Logf("%d of %d tests pass", passed, len(all))
}

// section returns what a test has printed.
func section(out, name string) string {
	m := regexp.MustCompile(`(?s)=== RUN   ` + name + `\n.*?(=== RUN|$)`).FindString(out)
	return strings.TrimSuffix(m, "=== RUN")
}
