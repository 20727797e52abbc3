package live

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/pipeline"
)

func never(uint32) bool { return false }

// TestPorts finds the outputs among the datapath's actions.
func TestPorts(t *testing.T) {
	for actions, want := range map[string]string{
		"drop": "", "2": "2", "ct(commit,zone=1,nat(dst=10.0.0.1:80)),recirc(0x3)": "", "set(eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02)),3,pop_vlan,4": "3 4",
		"sample(sample=1.0%,actions(userspace(pid=0,sFlow(vid=0,pcp=0,output=1))))": "", "clone(tnl_push(tnl_port(4),out_port(1)),2)": "clone(tnl_push(tnl_port(4),out_port(1)),2)",
		"hash(l4(0)),recirc(0x5)": "", "": "", ")": "", "(": "",
	} {
		w := walk{last: pass{actions: actions}}
		if got := strings.Join(w.ports(), " "); got != want {
			t.Errorf("%s: %q, want %q", actions, got, want)
		}
	}
}

// TestEmptyBucket recognizes a group that drops the packet.
func TestEmptyBucket(t *testing.T) {
	const text = "Flow: tcp\n\nbridge(\"b\")\n----\n 1. tcp, priority 300, cookie 0x1\n    group:7\n%s\nFinal flow: unchanged\nMegaflow: eth\nDatapath actions: drop\n"
	for choice, want := range map[string]uint32{"     -> no live bucket\n": 7, "     -> using bucket 1\n    bucket 1\n": 7, "     -> using bucket 1\n    bucket 1\n            output:9\n": 0} {
		if w, err := parseWalk(fmt.Sprintf(text, choice), never); err != nil || w.last.empty != want {
			t.Errorf("%q: group %+v, %v", choice, w, err)
		}
	}
}

// The answers in testdata are Open vSwitch 3.1's, for packets of every kind.
func TestParseWalk(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	for name, want := range map[string]struct {
		walk
		hits    int
		final   string
		states  string
		refused bool
		ports   string
	}{
		"group": {walk{reg1: 0x27423f01, group: 1775275968, before: 4, endpoint: at("10.0.1.11:8080"), hashMask: 0xf}, 6,
			"cookie=0x6e6b700100000000,table=30,priority=0,actions=NORMAL", "trk,new,dnat", false, "1"},
		"masqueraded": {walk{reg1: 0x27423f03, group: 1775275968, before: 5, endpoint: at("10.0.1.11:8080"), hashMask: 0xf}, 7,
			"cookie=0x6e6b700100000000,table=30,priority=100,ip,dl_dst=02:00:00:00:00:02,actions=set_field:02:00:00:00:00:02->eth_src," +
				"set_field:02:00:00:00:00:01->eth_dst,dec_ttl,set_field:ANY->in_port,output:1", "trk,new trk,new trk,new,dnat trk,new,snat", false, "1"},
		"unsettled": {walk{reg1: 0x27423f03, group: 1775275968, before: 5, endpoint: at("10.0.1.11:8080"), hashMask: 0xf}, 7,
			"cookie=0x6e6b700100000000,table=30,priority=300,ct_state=+trk-snat,tcp,reg0=0x8/0x8,actions=drop", "trk,new trk,new trk,new,dnat trk,new,snat", false, ""},
		"foreign": {walk{reg1: 0x10fc6b01, endpoint: at("10.0.1.11:8080"), hashMask: 0xf}, 11,
			"cookie=0x77,table=30,priority=65000,ip,actions=drop", "trk,new trk,new,dnat", false, ""},
		"affinity": {walk{reg1: 0x2bb4ee01, endpoint: at("10.0.1.11:8080")}, 6,
			"cookie=0x6e6b700100000000,table=30,priority=0,actions=NORMAL", "trk,new trk,new,dnat", false, "1"},
		"refused":   {walk{}, 3, "", "trk,new", true, ""},
		"dropped":   {walk{reg1: 0x165a4003}, 3, "cookie=0x6e6b700100165a40,table=12,priority=50,ip,reg1=0x165a4000/0xffffff04,actions=drop", "trk,new", false, ""},
		"untouched": {walk{}, 3, "cookie=0x6e6b700100000000,table=2,priority=0,actions=NORMAL", "trk,new", false, "1"},
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
		if final := w.final(16).String(); len(w.hits) != want.hits || final != want.final && !want.refused {
			t.Errorf("%s: %d hits, finally %s; want %d, %s", name, len(w.hits), final, want.hits, want.final)
		}
		if w.reg1 != want.reg1 || w.group != want.group || w.before != want.before || w.endpoint != want.endpoint || w.hashMask != want.hashMask ||
			w.refused() != want.refused || strings.Join(w.ports(), " ") != want.ports || strings.Join(w.states, " ") != want.states || w.forked {
			t.Errorf("%s: %+v, want %+v", name, w, want.walk)
		}
	}
	if w, err := parseWalk("Flow: tcp\n 0. No match.\n    drop\n\nFinal flow: unchanged\nDatapath actions: drop\n", never); err != nil || !w.final(16).none || len(w.ports()) > 0 {
		t.Errorf("an empty table: %+v, %v", w, err)
	}
	for _, text := range []string{"", "nonsense", " 0. priority 0\n"} {
		if _, err := parseWalk(text, never); err == nil {
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
		if got := p.flowText(q, 1); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
