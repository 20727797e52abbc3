package rules

import (
	"strings"
	"testing"
)

// FuzzEntry takes anything for a rule with its counters, as iptables prints it. What comes out is of the rule.
func FuzzEntry(f *testing.F) {
	for _, s := range []string{
		`-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -c 7 420 -j KUBE-EXT-ABC`, `-c`, `-A X -c 1`, `-A X -c -1 -1 -j Y`, `-j KUBE-SVC-`, "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if e, ok := ParseEntry(line); ok && !strings.Contains(line, "-"+e.Hash) {
			t.Errorf("%+v is not of %q", e, line)
		}
	})
}
