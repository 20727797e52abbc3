package fallback

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Entries to endpoints that a Service port is known to have lost are deleted, and at the start those to all that it does not have.
// Those of another Service, whose frontend it has got, stay, and so does what a NodePort has at an address of another Service.
func TestClosing(t *testing.T) {
	vip, moved := netip.MustParseAddrPort("40.0.0.1:80"), netip.MustParseAddrPort("40.0.0.2:80")
	at := func(host int) netip.AddrPort { return netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", host)) }
	port := func(r *k8s.Removed, frontends []netip.AddrPort, hosts ...int) *k8s.ServicePort {
		sp := &k8s.ServicePort{Removed: r}
		for _, f := range frontends {
			sp.Frontends = append(sp.Frontends, k8s.Frontend{Address: f.Addr(), Port: f.Port()})
		}
		for _, h := range hosts {
			sp.Serving = append(sp.Serving, at(h))
		}
		return sp
	}
	one, both := []netip.AddrPort{vip}, []netip.AddrPort{vip, moved}
	closes, unknown := &k8s.Removed{}, &k8s.Removed{Unknown: true}
	for name, tc := range map[string]struct {
		first   *k8s.ServicePort // before the start is over
		changes []*k8s.ServicePort
		want    string // deleted of the entries to hosts 1 to 4 at both frontends
	}{
		"known at the start":         {port(closes, one, 1, 2), nil, "1:3 1:4 "},
		"not known at the start":     {port(unknown, one, 1, 2), nil, ""},
		"known after the start":      {port(unknown, one, 1, 2), []*k8s.ServicePort{port(closes, one, 1)}, "1:2 1:3 1:4 "},
		"removed later":              {nil, []*k8s.ServicePort{port(closes, one, 1, 2), port(closes, one, 1)}, "1:2 "},
		"and back":                   {nil, []*k8s.ServicePort{port(closes, one, 1, 2), port(closes, one, 1), port(closes, one, 1, 2)}, ""},
		"a Service that is new":      {nil, []*k8s.ServicePort{port(closes, one, 1)}, ""},
		"new, and not known":         {nil, []*k8s.ServicePort{port(unknown, one, 1), port(closes, one, 1)}, ""},
		"a frontend that is new":     {nil, []*k8s.ServicePort{port(closes, one, 1, 2), port(closes, both, 1)}, "1:2 "},
		"a frontend that is gone":    {nil, []*k8s.ServicePort{port(closes, both, 1, 2), port(closes, one, 1)}, "1:2 "},
		"several":                    {nil, []*k8s.ServicePort{port(closes, both, 1, 2, 3), port(closes, both, 1, 2), port(closes, both, 1)}, "1:2 1:3 2:2 2:3 "},
		"the annotation goes":        {nil, []*k8s.ServicePort{port(closes, one, 1, 2), port(closes, one, 1), port(nil, one)}, ""},
		"the Service goes":           {nil, []*k8s.ServicePort{port(closes, one, 1, 2), port(closes, one, 1), nil}, ""},
		"known as it leaves":         {nil, []*k8s.ServicePort{port(unknown, one, 1, 2), port(closes, one, 1)}, "1:2 "},
		"the annotation comes later": {port(nil, one), []*k8s.ServicePort{port(closes, one, 1)}, ""},
	} {
		c, before := newClosing(), tc.first
		if before != nil {
			c.note(k8s.PortName{}, nil, before)
		}
		for i, after := range tc.changes {
			c.started = true
			c.note(k8s.PortName{}, before, after)
			if before = after; i < len(tc.changes)-1 && after.Removed == nil {
				t.Fatal("the annotation comes once")
			}
		}
		got, set := "", newClosingSet(c.ports)
		for i, f := range both {
			for host := 1; host <= 4; host++ {
				if p := set[f]; p != nil && p.removed(at(host)) {
					got += fmt.Sprintf("%d:%d ", i+1, host)
				}
			}
		}
		if got != tc.want {
			t.Errorf("%s: deleted are %q, want %q", name, got, tc.want)
		}
	}
}

// As long as deletion fails, what is noted of a Service port's endpoints does not grow without bound.
func TestClosingIsBounded(t *testing.T) {
	c := newClosing()
	c.started = true
	before := &k8s.ServicePort{Removed: &k8s.Removed{}, Frontends: []k8s.Frontend{{Port: 30000}}}
	for i := range 3 * maxGone {
		after := *before
		after.Serving = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)}
		c.note(k8s.PortName{}, before, &after)
		before = &after
	}
	if n := len(c.ports[k8s.PortName{}].gone); n != maxGone {
		t.Errorf("%d endpoints are noted, want %d", n, maxGone)
	}
}
