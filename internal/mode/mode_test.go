//go:build !windows

package mode

import (
	"errors"
	"testing"

	"github.com/nkp-proxy/nkp/internal/bridge"
)

// node returns the facts of a node: what the texts say, "" for nothing. A fact that must not be asked for is absent.
type node struct {
	ovs, connect, notNFTables, notIPTables, anotherProxy *string
	absent                                               bool // the error of connect is a reason to do without the bridge
}

func text(s string) *string { return &s }

func (n *node) facts(t *testing.T) *Facts {
	get := func(what string, fact *string) string {
		if fact == nil {
			t.Errorf("%s does not matter, and was asked for", what)
			return ""
		}
		return *fact
	}
	failure := func(what string, fact *string) error {
		if s := get(what, fact); s != "" {
			return errors.New(s)
		}
		return nil
	}
	return &Facts{
		OVSDB: "unix:/ovs/db.sock", Bridge: "br-int",
		OVS:          func() (string, bool) { return "/ovs", get("Open vSwitch", n.ovs) != "" },
		Connect:      func() (bool, error) { return n.absent, failure("the bridge", n.connect) },
		NotNFTables:  func() string { return get("nftables", n.notNFTables) },
		NotIPTables:  func() error { return failure("iptables", n.notIPTables) },
		AnotherProxy: func() string { return get("another proxy", n.anotherProxy) },
	}
}

// The choice follows from the facts, and asks for none that does not matter.
func TestChoose(t *testing.T) {
	const answers = "unix:/ovs/db.sock answers and has bridge br-int"
	for _, tc := range []struct {
		name        string
		asked, want Mode
		node        node
		reason      string // or the error
	}{
		{"asked for", IPTables, IPTables, node{}, "--mode iptables"},
		{"another system's", Windows, "", node{}, "--mode windows does not work on linux"},
		{"asked for a bridge", OVS, OVS, node{connect: text("")}, answers},
		{"asked for a bridge that is not there", OVS, "", node{connect: text("no bridge"), absent: true}, "no bridge"},
		{"a bridge", Auto, OVS, node{ovs: text("yes"), connect: text("")}, answers},
		{"a bridge of no use", Auto, "", node{ovs: text("yes"), connect: text("no OpenFlow15")}, "no OpenFlow15"},
		{"no Open vSwitch", Auto, NFTables, node{ovs: text(""), notNFTables: text("")}, "there is no Open vSwitch here: nothing in /ovs"},
		{"no bridge", Auto, NFTables, node{ovs: text("yes"), connect: text("no bridge"), absent: true, notNFTables: text("")},
			"Open vSwitch is installed, but: no bridge"},
		{"no bridge, nor nftables", Auto, IPTables, node{ovs: text(""), notNFTables: text("INPUT drops")},
			"there is no Open vSwitch here: nothing in /ovs; not nftables: INPUT drops"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := tc.node.facts(t)
			f.Asked = tc.asked
			c, err := f.Choose()
			if err != nil {
				c.Mode, c.Reason = "", err.Error()
			}
			if (c != Choice{tc.want, tc.reason}) {
				t.Errorf("%+v, want %s: %s", c, tc.want, tc.reason)
			}
		})
	}
}

// So does what serves beside a bridge.
func TestBeside(t *testing.T) {
	free := node{notIPTables: text(""), anotherProxy: text(""), notNFTables: text("")}
	with := func(change func(*node)) node {
		n := free
		change(&n)
		return n
	}
	for _, tc := range []struct {
		name   string
		asked  bridge.HostTraffic
		shares bool
		node   node
		want   Mode
		why    string
	}{
		{"nftables asked for", bridge.HostNFTables, false, node{notIPTables: text("")}, NFTables, ""},
		{"iptables asked for", bridge.HostIPTables, false, node{notIPTables: text("")}, IPTables, ""},
		{"iptables asked for, and there is none", bridge.HostIPTables, false, node{notIPTables: text("no iptables")}, "", "no iptables"},
		{"nothing speaks against nftables", bridge.HostAuto, false, free, NFTables, ""},
		{"another proxy", bridge.HostAuto, false, node{notIPTables: text(""), anotherProxy: text("kube-proxy")}, "", "kube-proxy"},
		{"not nftables", bridge.HostAuto, false, with(func(n *node) { n.notNFTables = text("INPUT drops") }), IPTables, "INPUT drops"},
		{"neither", bridge.HostAuto, false, with(func(n *node) { n.notNFTables, n.notIPTables = text("INPUT drops"), text("no iptables") }), "",
			"no iptables; not nftables: INPUT drops"},
		{"another proxy is expected", bridge.HostAuto, true, with(func(n *node) { n.anotherProxy = nil }), NFTables, ""},
		{"another proxy is expected, and not nftables", bridge.HostAuto, true,
			with(func(n *node) { n.anotherProxy, n.notNFTables = nil, text("INPUT drops") }), "",
			"with --service-proxy-name another Service proxy is expected on this node, and iptables mode uses the same chain names " +
				"(--host-traffic iptables makes nkp take them over); not nftables: INPUT drops"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := tc.node.facts(t)
			f.HostTraffic, f.SharesNode = tc.asked, tc.shares
			if m, why := f.Beside(); m != tc.want || why != tc.why {
				t.Errorf("%q, %q, want %q, %q", m, why, tc.want, tc.why)
			}
		})
	}
}
