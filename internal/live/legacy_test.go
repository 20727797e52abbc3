package live

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// Rules that may keep a connection's packets from arriving are named; those that certainly match none of them are not, nor those that the
// packets do not come to.
func TestInterfering(t *testing.T) {
	q := trace.Question{Protocol: "TCP", From: netip.MustParseAddrPort("10.0.0.1:0"), To: netip.MustParseAddrPort("40.0.0.1:80")}
	paths := []rules.Path{{Endpoint: netip.MustParseAddrPort("10.0.1.1:8080")}}
	masqueraded := []rules.Path{{Endpoint: netip.MustParseAddrPort("10.0.1.1:8080"), Masquerade: true}}
	for rule, named := range map[string]bool{
		"-j DROP":                                       true,
		"-p tcp -m tcp --dport 80 -j DROP":              true, // before the translation
		"-p tcp -m tcp --dport 8080 -j REJECT":          true, // after it
		"-p tcp -m tcp --sport 8080 -j DROP":            true, // an answer
		"-p tcp -m tcp --sport 33000:44000 -j DROP":     true, // the client's port is not known
		"-p tcp -m tcp --dport 8000:9000 -j DROP":       true,
		"-p tcp -m tcp --dport 81:8079 -m x -j DROP":    true, // as a destination of answers it is the client's
		"-s 10.0.1.0/24 -p tcp --dport 8080 -j DROP":    true, // an answer: the client's port is not known
		"-d 10.0.1.0/24 -p tcp --dport 81:90 -j DROP":   false,
		"-d 10.0.1.1/32 -j DROP":                        true,
		"! -d 10.0.1.1/32 -s 10.0.0.1/32 -j DROP":       true,
		"-d 10.0.2.0/24 -j DROP":                        false,
		"-d 10.0.0.1/255.0.0.255 -j DROP":               true, // a mask that is no prefix length
		"-m state --state INVALID -j DROP":              false,
		"-s 10.0.2.0/24 -j DROP":                        false,
		"! -s 10.0.0.0/8 -d 10.0.1.1/32 -j DROP":        false,
		"-p udp -j DROP":                                false,
		"! -p tcp -j DROP":                              false,
		"-p 6 -j DROP":                                  true,
		"-m conntrack --ctstate INVALID -j DROP":        false,
		"-m conntrack --ctstate INVALID,NEW -j DROP":    true,
		"-m conntrack ! --ctstate INVALID -j DROP":      true,
		"-i eth1 -j DROP":                               true,
		"-m statistic --mode random -j DROP":            true,
		`-m comment --comment "x -j ACCEPT" -j DROP`:    true,
		"-j NFQUEUE --queue-num 1":                      true,
		"-j CT --notrack":                               true,
		"-j MASQUERADE":                                 false,
		"-j LOG":                                        false,
		"-j RETURN":                                     false,
		"-m comment --comment none":                     false,
		"-p tcp -j dropper":                             true,
		"-p udp -j dropper":                             false,
		"-g dropper":                                    true,
		"-j loop":                                       false,
		"-d 10.0.0.1/32 -p tcp --sport 9999 -j dropper": false,
	} {
		tables := map[string]map[string][]string{"filter": {"FORWARD": {rule}, "INPUT": {"-j DROP"}, "dropper": {"-j DROP"}, "loop": {"-j loop"}, "unused": {"-j DROP"}}}
		if got := interfering(tables, []string{"FORWARD"}, headers(q, paths)); (len(got) > 0) != named {
			t.Errorf("%s: %q, want named %v", rule, got, named)
		}
	}
	for _, c := range []struct {
		what, table, chain, rule string
		paths                    []rules.Path
		want                     int
	}{
		{"answers to the node where nothing is masqueraded", "mangle", "PREROUTING", "-s 10.0.1.1/32 -d 172.16.0.2/32 -j DROP", paths, 0},
		{"answers to the node", "mangle", "PREROUTING", "-s 10.0.1.1/32 -d 172.16.0.2/32 -j DROP", masqueraded, 1},
		{"answers, which do not visit nat", "nat", "PREROUTING", "-p tcp -m tcp --dport 8443 -j DNAT --to-destination 10.0.0.9:443", paths, 0},
		{"the first packet in nat", "nat", "PREROUTING", "-p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.9:443", paths, 1},
	} {
		tables := map[string]map[string][]string{c.table: {c.chain: {c.rule}}}
		if got := interfering(tables, []string{c.chain}, headers(q, c.paths)); len(got) != c.want {
			t.Errorf("%s: %q", c.what, got)
		}
	}
}

// Where the kernel has no nf_tables, no rule of nft keeps the node's own packets from the bridge; those of iptables (legacy) may.
func TestOwnPacketsWithoutNFTables(t *testing.T) {
	for drops, want := range map[string]trace.Verdict{"": trace.Deliver, "chain OUTPUT of iptables (legacy, IPv4) drops": trace.Uncertain} {
		s := Tables{
			Follow: func(rules.Packet) ([]rules.Path, []string, error) { return nil, nil, errors.ErrUnsupported },
			Legacy: func(chains ...string) (string, map[string]map[string][]string, error) {
				if !slices.Contains(chains, "OUTPUT") {
					t.Errorf("asks for %q", chains)
				}
				return drops, nil, nil
			},
		}
		r := &trace.Result{Live: trace.NewLive(), Source: k8s.ThisNode}
		r.Live.Verdict, r.Live.Agrees = trace.Deliver, true
		q := trace.Question{Protocol: "TCP", From: netip.MustParseAddrPort("172.16.0.2:1024"), To: netip.MustParseAddrPort("40.0.0.1:80")}
		if err := s.CompareOwn("br-int", q, r); err != nil || r.Live.Verdict != want || r.Live.Agrees != (drops == "") {
			t.Errorf("%q: %v, %+v, want %s", drops, err, r.Live, want)
		}
	}
}
