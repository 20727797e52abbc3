//go:build linux

package restore

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzSave reads anything as what iptables-save prints, and as the complaint of an iptables-restore.
func FuzzSave(f *testing.F) {
	for _, s := range []string{
		"*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -d 40.0.0.1/32 -j X\nCOMMIT\n",
		":\n-A \n-A x\n-A  \n", "line 2 failed", "iptables-restore v1.8.9: line: 99999999999999999999 failed", "line 0", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n := 0
		err := parseSave(bytes.NewReader(text), func(chain, rule string) {
			n++
			if strings.Contains(chain+rule, "\n") {
				t.Errorf("chain %q, rule %q", chain, rule)
			}
		})
		if err == nil && n > 1+bytes.Count(text, []byte("\n")) {
			t.Errorf("%d chains and rules in %d lines", n, bytes.Count(text, []byte("\n")))
		}
		if l := refusedLine(string(text), text); strings.Contains(l, "\n") {
			t.Errorf("%q is no line", l)
		}
	})
}
