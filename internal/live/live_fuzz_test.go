package live

import (
	"net/netip"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline"
)

// FuzzWalk reads anything as the answer of ofproto/trace.
func FuzzWalk(f *testing.F) {
	for _, s := range []string{
		"Flow: tcp,in_port=11,reg1=0x1\n\nbridge(\"br-int\")\n 0. ip, priority 100, cookie 0x6e6b700000000001\n    group:7\n    nat(dst=10.0.0.1:80)\nFinal flow: reg1=0x7\nDatapath actions: ct(commit),2\n",
		" 1. No match.\nDatapath actions: drop\n", "99999999999999999999. priority 0\nDatapath actions: x\n", "", "Datapath actions: controller(reason=1)\n 300. priority 7\n",
		" 0. priority 0\n nat(dst=[fd00::1]:80)\n nat(dst=fd00::1)\nDatapath actions: \n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		w, err := parseWalk(text, pipeline.DefaultLayout().ChoosesByHash)
		if (w == nil) == (err == nil) {
			t.Fatalf("%v, %v", w, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		if w != nil && len(w.hits) > len(text) {
			t.Errorf("%d flows in %d bytes", len(w.hits), len(text))
		}
	})
}

// FuzzRule takes anything for a rule that iptables-save printed.
func FuzzRule(f *testing.F) {
	for _, s := range []string{
		`-d 40.0.0.1/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-X`,
		`! -s 10.0.0.0/16 -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully`, `-j`, `-m`, `! ! -p`, `--comment "a\"b`, `-j DNAT --to-destination [fd00::1]:80`, `-p tcp --dport 99999`, "\\",
		`-m statistic --mode random --probability 0.5 -j X`, `-i cni+ -m addrtype --dst-type LOCAL -g Y`,
	} {
		f.Add(s)
	}
	w := &walker{Rules: &Rules{}, protocol: "TCP", src: netip.MustParseAddr("10.0.0.1"), dst: netip.MustParseAddrPort("40.0.0.1:80"), seen: map[string]bool{}}
	f.Fuzz(func(t *testing.T, text string) {
		r := newRule(text)
		for _, marked := range []bool{false, true} {
			if h := r.holds(w, marked); h != no && h != yes && h != maybe {
				t.Errorf("%q holds %d", text, h)
			}
		}
		r.option("--to-destination")
		if len(r.matches)+len(r.options) > len(text) {
			t.Errorf("%d matches and %d options in %d bytes", len(r.matches), len(r.options), len(text))
		}
	})
}
