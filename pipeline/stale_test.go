package pipeline

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A connection is stale if its endpoint does not serve whoever has its frontend now, and only if it is one of a Service's.
func TestStale(t *testing.T) {
	at := netip.MustParseAddrPort
	s := shape{Name: "dns", Protocol: "UDP", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}}
	named := shape{Name: "named", Protocol: "UDP", Cluster: 1, VIP: 1, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	named.Frontends[0].Address, named.Frontends[0].Port = netip.MustParseAddr("172.16.0.2"), 30000 // the NodePort of dns
	tcp := shape{Name: "tcp", Cluster: 2, VIP: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	alone, both := compile(t, testConfig(), s.ServicePort(), tcp).UDPFrontends(), compile(t, testConfig(), named, s.ServicePort()).UDPFrontends()
	for name, tc := range map[string]struct {
		in                 UDPFrontends
		mark               uint32
		frontend, endpoint string
		want               bool
	}{
		"serves":                      {alone, 0x701, "40.0.0.1:80", "10.0.0.12:80", false},
		"by NodePort":                 {alone, 0x703, "172.16.0.2:30000", "10.0.0.12:80", false},
		"serves no more":              {alone, 0x701, "40.0.0.1:80", "10.0.0.13:80", true},
		"another port":                {alone, 0x701, "40.0.0.1:80", "10.0.0.12:81", true},
		"nobody's frontend":           {alone, 0x701, "40.0.0.9:80", "10.0.0.12:80", true},
		"a TCP frontend":              {alone, 0x701, "40.0.0.3:80", "10.0.0.12:80", true},
		"past Services":               {alone, 0, "40.0.0.1:80", "10.0.0.13:80", false},
		"an address before NodePorts": {both, 0x701, "172.16.0.2:30000", "10.0.0.12:80", true},
		"its own endpoint":            {both, 0x701, "172.16.0.2:30000", "10.0.0.11:80", false},
	} {
		if got := tc.in.Stale(tc.mark, at(tc.frontend), at(tc.endpoint)); got != tc.want {
			t.Errorf("%s: %v, want %v; of %v", name, got, tc.want, tc.in)
		}
	}
}

// A frontend that passes to another Service is named whole, as is one that takes a NodePort's place at an address of the node.
func TestFrontendsThatMove(t *testing.T) {
	s := shape{Name: "dns", Protocol: "UDP", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}
	c := compile(t, testConfig(), s.ServicePort())
	moved := s.ServicePort()
	moved.Frontends[0].Address = netip.MustParseAddr("172.16.0.2")
	d := c.Update(map[k8s.PortName]*k8s.ServicePort{moved.Name: moved})
	want := "[zone=1001,ct_nw_proto=17,dst=40.0.0.1:80,replier=invalid AddrPort zone=1001,ct_nw_proto=17,dst=172.16.0.2:80,replier=invalid AddrPort]"
	if got := fmt.Sprint(d.FlushCT); got != want {
		t.Errorf("flushed %s, want %s", got, want)
	}
	if d := c.Update(map[k8s.PortName]*k8s.ServicePort{moved.Name: nil}); len(d.FlushCT) != 1 {
		t.Errorf("flushed %v when the Service went", d.FlushCT)
	}
}

// The filters of a change are bounded, however many frontends and endpoints it takes from a Service.
func TestStaleIsBounded(t *testing.T) {
	sp := shape{Name: "dns", Protocol: "UDP", Cluster: 1000, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	for i := range 1000 {
		sp.Frontends = append(sp.Frontends, k8s.Frontend{Type: k8s.ExternalIP, Address: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), Port: 53})
	}
	c := compile(t, testConfig(), sp)
	empty := *sp
	empty.ClusterEndpoints, empty.Serving = nil, nil
	if d := c.Update(map[k8s.PortName]*k8s.ServicePort{sp.Name: &empty}); len(d.FlushCT) != MaxStale+1 {
		t.Errorf("%d filters for 1,001 frontends and 1,000 endpoints, want %d", len(d.FlushCT), MaxStale+1)
	}
}

// Of TCP connections those end whose mark is of the Service port that has their frontend, and whose endpoint was removed.
func TestClosingFrontends(t *testing.T) {
	at := netip.MustParseAddrPort
	web := shape{Name: "web", Cluster: 2, Closes: true, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}}
	kept := shape{Name: "kept", Cluster: 1, VIP: 1, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	unknown := shape{Name: "unknown", Cluster: 1, VIP: 2, Closes: true, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	unknown.Removed.Unknown = true
	c := compile(t, testConfig(), web.ServicePort(), kept, unknown)
	frontends := c.ClosingFrontends()
	mark := func(sp *k8s.ServicePort) uint32 { return c.ports[sp.Name].id<<markIDShift | markService }
	for name, tc := range map[string]struct {
		mark               uint32
		frontend, endpoint string
		want               bool
	}{
		"removed":                {mark(web.ServicePort()), "40.0.0.1:80", "10.0.0.13:80", true},
		"removed, masqueraded":   {mark(web.ServicePort()) | markMasquerade, "40.0.0.1:80", "10.0.0.13:80", true},
		"removed, by NodePort":   {mark(web.ServicePort()), "172.16.0.2:30000", "10.0.0.13:80", true},
		"another port":           {mark(web.ServicePort()), "40.0.0.1:80", "10.0.0.12:81", true},
		"not removed":            {mark(web.ServicePort()), "40.0.0.1:80", "10.0.0.12:80", false},
		"of another Service":     {mark(kept), "40.0.0.1:80", "10.0.0.13:80", false},
		"at another's frontend":  {mark(web.ServicePort()), "40.0.0.2:80", "10.0.0.13:80", false},
		"without the annotation": {mark(kept), "40.0.0.2:80", "10.0.0.13:80", false},
		"not known yet":          {mark(unknown), "40.0.0.3:80", "10.0.0.13:80", false},
		"a stranger's":           {0, "40.0.0.1:80", "10.0.0.13:80", false},
	} {
		if got := frontends.Stale(tc.mark, at(tc.frontend), at(tc.endpoint)); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// By one filter connections to a removed endpoint end, unless it has come back, or another Service's frontend takes precedence over
// the NodePort.
func TestClosingFrontendsEnd(t *testing.T) {
	at := netip.MustParseAddrPort
	web := shape{Name: "web", Cluster: 3, Closes: true, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}}.ServicePort()
	kept := shape{Name: "kept", Cluster: 1, VIP: 1, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.ExternalIP}}.ServicePort()
	less := *web
	less.Serving = web.Serving[:2]
	c := compile(t, testConfig(), web)
	vip, nodePort, gone := at("40.0.0.1:80"), at("172.16.0.2:30000"), web.Serving[2]
	check := func(when string, wantVIP, wantNodePort bool) {
		t.Helper()
		f := c.ClosingFrontends()
		if f.Ends(vip, gone) != wantVIP || f.Ends(nodePort, gone) != wantNodePort || f.Ends(vip, web.Serving[0]) {
			t.Errorf("%s: %t, %t; want %t, %t", when, f.Ends(vip, gone), f.Ends(nodePort, gone), wantVIP, wantNodePort)
		}
	}
	check("all there", false, false)
	c.Update(map[k8s.PortName]*k8s.ServicePort{web.Name: &less})
	check("one gone", true, true)
	kept.Frontends[1].Address, kept.Frontends[1].Port = nodePort.Addr(), nodePort.Port()
	c.Update(map[k8s.PortName]*k8s.ServicePort{kept.Name: kept})
	check("another's frontend", true, false)
	c.Update(map[k8s.PortName]*k8s.ServicePort{web.Name: web})
	check("back", false, false)
}

// A removed endpoint is a filter for each frontend; where nothing is known of endpoints that were removed before, a listing.
func TestClosedConnections(t *testing.T) {
	web := shape{Name: "web", Cluster: 3, Closes: true, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.NodePort}}.ServicePort()
	less, keeps, unknown := *web, *web, *web
	less.Serving, keeps.Removed, unknown.Removed = web.Serving[:2], nil, &k8s.Removed{Unknown: true}
	c := compile(t, testConfig(), web)
	for _, tc := range []struct {
		to     *k8s.ServicePort
		want   int
		listed bool
	}{{&less, 2, false}, {web, 0, false}, {&keeps, 0, false}, {&less, 2, true}, {&unknown, 0, false}, {web, 2, true}, {nil, 0, false}, {web, 0, false}} {
		d := c.Update(map[k8s.PortName]*k8s.ServicePort{web.Name: tc.to})
		ok := len(d.FlushCT) == tc.want
		for _, f := range d.FlushCT {
			ok = ok && f.IPProto == flow.ProtoTCP && OnlyListed(&f) == tc.listed && (tc.listed || f.Replier == web.Serving[2])
		}
		if !ok {
			t.Errorf("flushed %v, want %d, listed %t", d.FlushCT, tc.want, tc.listed)
		}
	}
}

// A frontend that is its own endpoint, whose packets are not tracked where that can crash the switch, resets none of them.
func TestUntrackedFrontendIsNotReset(t *testing.T) {
	sp := shape{Name: "own", Cluster: 2, Closes: true, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.ExternalIP}}.ServicePort()
	sp.Frontends[1].Address = sp.ClusterEndpoints[0].Addr.Addr()
	for _, crashes := range []bool{false, true} {
		cfg, resets := testConfig(), 0
		cfg.NoNullNAT = crashes
		for _, f := range compile(t, cfg, sp).State().Flows {
			if cfg.Layout.DropReason(f.Table, f.Priority) == k8s.DropRemovedEndpoint {
				resets++
			}
		}
		if want := map[bool]int{false: 2, true: 1}[crashes]; resets != want {
			t.Errorf("NoNullNAT %t: %d flows reset, want %d", crashes, resets, want)
		}
	}
}
