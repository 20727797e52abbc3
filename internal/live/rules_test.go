package live

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

func TestNewRule(t *testing.T) {
	r := newRule(`! -s 10.0.0.0/16 -d 40.0.0.1/32 -p tcp -m comment --comment "default/web:http \"cluster\" IP" -m tcp --dport 80 -j KUBE-SVC-X`)
	want := []match{{"-s", "10.0.0.0/16", true}, {"-d", "40.0.0.1/32", false}, {"-p", "tcp", false}, {"--dport", "80", false}}
	if !reflect.DeepEqual(r.matches, want) || r.target != "KUBE-SVC-X" || r.comment != `default/web:http "cluster" IP` {
		t.Errorf("%+v", r)
	}
	r = newRule(`-p tcp -m tcp -j DNAT --to-destination 10.0.0.1:80`)
	if r.target != "DNAT" || r.option("--to-destination") != "10.0.0.1:80" || r.option("--none") != "" {
		t.Errorf("%+v", r)
	}
}

func TestHolds(t *testing.T) {
	w := &walker{
		Rules:    &Rules{Node: k8s.Node{Local: []netip.Addr{netip.MustParseAddr("172.16.0.2")}}},
		protocol: "TCP", src: netip.MustParseAddr("10.0.0.5"), dst: netip.MustParseAddrPort("172.16.0.2:80"), device: "veth1",
	}
	for text, want := range map[string]truth{
		"-j X":                 yes,
		"-s 10.0.0.0/8 -j X":   yes,
		"! -s 10.0.0.0/8 -j X": no,
		"-s 10.0.0.5/32 -d 172.16.0.2/32 -p tcp -m tcp --dport 80 -j X": yes,
		"-p udp -j X":                                            no,
		"-p tcp -m tcp --dport 81 -j X":                          no,
		"-i veth+ -j X":                                          yes,
		"! -i veth1 -j X":                                        no,
		"-i eth0 -j X":                                           no,
		"-m addrtype --dst-type LOCAL -j X":                      yes,
		"-m addrtype --src-type LOCAL -j X":                      no,
		"-m conntrack --ctstate NEW -j X":                        yes,
		"-m conntrack --ctstate RELATED,ESTABLISHED -j X":        no,
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j X": yes,
		"-m mark --mark 0x4000/0x4000 -j X":                      no,
		"-m mark ! --mark 0x4000/0x4000 -j X":                    yes,
		"-m statistic --mode random --probability 0.5 -j X":      maybe,
		"-m recent --rcheck --seconds 600 --reap --name A --mask 255.255.255.255 --rsource": maybe,
		"-p udp -m statistic --mode random --probability 0.5 -j X":                          no,
		"-m set --match-set a dst -j X":                                                     no,
		"-m set ! --match-set a dst -j X":                                                   no,
	} {
		r := newRule(text)
		if got := r.holds(w, false); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	marked := newRule("-m mark --mark 0x4000/0x4000 -j X")
	if marked.holds(w, true) != yes {
		t.Error("a marked packet is not seen as one")
	}
}

// installedRules are as iptables-save prints them: Service web with two endpoints, Service empty without.
func installedRules() *Rules {
	chains := func(text string) map[string][]string {
		all := map[string][]string{}
		for line := range strings.Lines(text) {
			if chain, rule, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				all[chain] = append(all[chain], rule)
			}
		}
		return all
	}
	return &Rules{
		Others: noOthers(),
		Node:   k8s.Node{Local: []netip.Addr{netip.MustParseAddr("172.16.0.2")}},
		Tables: map[string]map[string][]string{
			"nat": chains(`PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
				OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
				KUBE-SERVICES -d 40.0.0.1/32 -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-A
				KUBE-SVC-A ! -s 10.0.0.0/16 -d 40.0.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
				KUBE-SVC-A -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-1
				KUBE-SVC-A -j KUBE-SEP-2
				KUBE-SEP-1 -s 10.0.0.11/32 -j KUBE-MARK-MASQ
				KUBE-SEP-1 -p tcp -m tcp -j DNAT --to-destination 10.0.0.11:8080
				KUBE-SEP-2 -s 10.0.1.11/32 -j KUBE-MARK-MASQ
				KUBE-SEP-2 -p tcp -m tcp -j DNAT --to-destination 10.0.1.11:8080
				KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`),
			"filter": chains(`FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
				KUBE-SERVICES -d 40.0.0.2/32 -p tcp -m comment --comment "default/empty has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable`),
		},
	}
}

// noOthers are the rules of other programs where there are none.
func noOthers() *Tables {
	return &Tables{
		Follow: func(p rules.Packet) ([]rules.Path, []string, error) { return nil, nil, errors.ErrUnsupported },
		Legacy: func(...string) (string, map[string]map[string][]string, error) { return "", nil, nil },
	}
}

// Of several cluster CIDRs of a family, each takes the mark for masquerading from the packets of its pods.
func TestRulesClearTheMark(t *testing.T) {
	s := installedRules()
	nat := s.Tables["nat"]
	nat["KUBE-SVC-A"] = append([]string{"-j KUBE-MARK-MASQ", "-s 10.0.0.0/16 -j MARK --set-xmark 0x0/0x4000"}, nat["KUBE-SVC-A"][1:]...)
	r := &trace.Result{Verdict: trace.Deliver, Service: "default/web", Masquerade: trace.Never, Endpoints: []string{"10.0.0.11:8080", "10.0.1.11:8080"}}
	q := trace.Question{From: netip.MustParseAddrPort("10.0.0.5:0"), To: netip.MustParseAddrPort("40.0.0.1:80"), Protocol: "TCP"}
	if err := s.Compare(q, r); err != nil || !r.Live.Agrees {
		t.Errorf("%v, %+v", err, r.Live)
	}
}

func TestRulesCompare(t *testing.T) {
	answer := func(v trace.Verdict, service string, m trace.Masquerade, endpoints ...string) trace.Result {
		return trace.Result{Verdict: v, Service: service, Masquerade: m, Endpoints: endpoints}
	}
	both := []string{"10.0.0.11:8080", "10.0.1.11:8080"}
	for _, tc := range []struct {
		from, to string
		model    trace.Result
		differs  string
	}{
		{"10.0.0.5", "40.0.0.1:80", answer(trace.Deliver, "default/web", trace.Never, both...), ""},
		{"10.0.0.11", "40.0.0.1:80", answer(trace.Deliver, "default/web", trace.Hairpin, both...), ""},
		{"1.2.3.4", "40.0.0.1:80", answer(trace.Deliver, "default/web", trace.Always, both...), ""},
		{"10.0.0.5", "40.0.0.2:80", answer(trace.Reject, "default/empty", trace.Never), ""},
		{"10.0.0.5", "40.0.0.3:80", answer(trace.Untouched, "", trace.Never), ""},
		{"10.0.0.5", "40.0.0.3:80", answer(trace.Deliver, "default/x", trace.Never, both...), "the rules say untouched, the model deliver"},
		{"10.0.0.5", "40.0.0.1:80", answer(trace.Reject, "default/web", trace.Never), "the rules say deliver, the model reject"},
		{"10.0.0.5", "40.0.0.1:80", answer(trace.Deliver, "default/web", trace.Always, both...), "the rules say masquerade never, the model always"},
		{"10.0.0.5", "40.0.0.1:80", answer(trace.Deliver, "default/other", trace.Never, both...), "the rules have the packet for default/web"},
		{"10.0.0.5", "40.0.0.1:80", answer(trace.Deliver, "default/web", trace.Never, both[0]), "still have the endpoint 10.0.1.11:8080"},
		{"10.0.0.5", "40.0.0.1:80", answer(trace.Deliver, "default/web", trace.Never, append(both, "10.0.2.1:80")...), "lack the endpoint 10.0.2.1:80"},
	} {
		r := tc.model
		q := trace.Question{From: netip.AddrPortFrom(netip.MustParseAddr(tc.from), 0), To: netip.MustParseAddrPort(tc.to), Protocol: "TCP"}
		if err := installedRules().Compare(q, &r); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(r.Live.Differences, "; ")
		if r.Live.Agrees != (tc.differs == "") || !strings.Contains(got, tc.differs) {
			t.Errorf("%s to %s: %q, want %q\n%s", tc.from, tc.to, got, tc.differs, strings.Join(r.Live.Steps, "\n"))
		}
	}
}

// Chains that lead to each other in a circle end all the same.
func TestRulesCircle(t *testing.T) {
	s := &Rules{Others: noOthers(), Tables: map[string]map[string][]string{"nat": {
		"PREROUTING": {"-j KUBE-SERVICES"}, "KUBE-SERVICES": {"-j KUBE-SVC-A"}, "KUBE-SVC-A": {"-j KUBE-SERVICES"},
	}}}
	r := &trace.Result{Verdict: trace.Untouched, Masquerade: trace.Never}
	q := trace.Question{From: netip.MustParseAddrPort("10.0.0.5:0"), To: netip.MustParseAddrPort("40.0.0.1:80"), Protocol: "TCP"}
	if err := s.Compare(q, r); err != nil || !r.Live.Agrees {
		t.Errorf("%v, %+v", err, r.Live)
	}
}
