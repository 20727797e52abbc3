package live

import (
	"net/netip"
	"os"
	"testing"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/pipeline"
)

// The answers in testdata are Open vSwitch 3.1's, for packets of every kind.
func TestParseWalk(t *testing.T) {
	for name, want := range map[string]struct {
		walk
		hits  int
		table int // of the last
	}{
		"group":     {walk{reg1: 0x27423f01, group: 1775275968}, 2, 1},
		"affinity":  {walk{reg1: 0x2bb4ee01, endpoint: netip.MustParseAddrPort("10.0.1.11:8080")}, 6, 30},
		"refused":   {walk{refused: true}, 3, 13},
		"dropped":   {walk{reg1: 0x165a4003, dropped: true}, 3, 12},
		"untouched": {walk{}, 3, 2},
	} {
		text, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		w, err := parseWalk(string(text), pipeline.DefaultLayout().ChoosesByHash)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(w.hits) != want.hits || w.hits[len(w.hits)-1].table != want.table {
			t.Errorf("%s: hits %+v", name, w.hits)
		}
		if w.reg1 != want.reg1 || w.group != want.group || w.endpoint != want.endpoint || w.refused != want.refused || w.dropped != want.dropped {
			t.Errorf("%s: %+v, want %+v", name, w, want.walk)
		}
	}
	if w, err := parseWalk("Flow: tcp\n 0. No match.\n    drop\n\nFinal flow: unchanged\nDatapath actions: drop\n", nil); err != nil || !w.hits[0].none || !w.dropped {
		t.Errorf("an empty table: %+v, %v", w, err)
	}
	for _, text := range []string{"", "nonsense", " 0. priority 0\n"} {
		if _, err := parseWalk(text, nil); err == nil {
			t.Errorf("%q is understood", text)
		}
	}
}

func TestFlowText(t *testing.T) {
	p := packet{inPort: "11", src: "02:00:00:00:00:11", dst: "02:00:00:00:00:01"}
	for want, q := range map[string]trace.Question{
		"tcp,dp_hash=0x1,in_port=11,dl_src=02:00:00:00:00:11,dl_dst=02:00:00:00:00:01,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=49152,tcp_dst=80,tcp_flags=0x2": {
			From: netip.MustParseAddrPort("10.0.0.1:0"), To: netip.MustParseAddrPort("10.0.0.2:80"), Protocol: "TCP"},
		"sctp6,dp_hash=0x1,in_port=11,dl_src=02:00:00:00:00:11,dl_dst=02:00:00:00:00:01,ipv6_src=fd00::1,ipv6_dst=fd00::2,nw_ttl=64,sctp_src=7,sctp_dst=80": {
			From: netip.MustParseAddrPort("[fd00::1]:7"), To: netip.MustParseAddrPort("[fd00::2]:80"), Protocol: "SCTP"},
	} {
		if got := p.flowText(q); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
