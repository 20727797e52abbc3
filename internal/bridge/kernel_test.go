package bridge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A host route on the link, amid a route to another next hop, and what the kernel knows of the station are one route.
func TestOneRouteToAStation(t *testing.T) {
	prefix, ip, link := netip.MustParsePrefix, netip.MustParseAddr, node.Link{Index: 2, Name: "br-int"}
	mac := func(n byte) [6]byte { return [6]byte{2, 0, 0, 0, 0, n} }
	k := &kernel{hops: map[netip.Addr]flow.MAC{}, network: &node.Network{
		Links: []node.Link{link},
		Routes: []node.Route{{Dst: prefix("10.0.0.5/32"), Link: 2}, {Dst: prefix("10.0.0.0/16"), Via: ip("172.16.0.9"), Link: 2},
			{Dst: prefix("172.16.0.0/24"), Link: 2}, {Dst: prefix("0.0.0.0/0"), Via: ip("172.16.0.1"), Link: 2}},
		Neighbours: map[node.Station]node.Neighbour{
			{Link: 2, Addr: ip("172.16.0.1")}: {MAC: mac(1), State: node.Fresh}, {Link: 2, Addr: ip("172.16.0.9")}: {MAC: mac(9), State: node.Fresh},
			{Link: 2, Addr: ip("10.0.0.5")}: {MAC: mac(5), State: node.Fresh},
		},
	}}
	var cfg pipeline.Config
	k.routes(&cfg, &ovsdb.Switch{Bridge: link.Name})
	var toIt []pipeline.Route
	for _, r := range cfg.Routes {
		if r.Dst == prefix("10.0.0.5/32") {
			toIt = append(toIt, r)
		}
	}
	if want := []pipeline.Route{{Dst: prefix("10.0.0.5/32"), MAC: mac(5)}}; !slices.Equal(toIt, want) {
		t.Errorf("%v, want %v", toIt, want)
	}
}

// With as many routes, stations and endpoints as there may be, each is looked up, not compared with all others: that would take minutes.
func TestManyRoutesAndEndpoints(t *testing.T) {
	const endpoints = 100_000
	at := func(base byte, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{base, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	n := &node.Network{Links: []node.Link{{Index: 2, Name: "br-int"}}, Neighbours: map[node.Station]node.Neighbour{}}
	n.Routes = append(n.Routes, node.Route{Dst: netip.MustParsePrefix("172.0.0.0/8"), Link: 2})
	for i := range node.MaxRoutes {
		mac := [6]byte{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
		n.Neighbours[node.Station{Link: 2, Addr: at(172, i)}] = node.Neighbour{MAC: mac, State: node.Fresh}
		n.Routes = append(n.Routes, node.Route{Dst: netip.PrefixFrom(at(20, i<<6), 26), Via: at(172, i), Link: 2})
	}
	k := &kernel{network: n, hops: map[netip.Addr]flow.MAC{}, endpoints: func(f func(netip.Addr)) {
		for i := range endpoints {
			f(at(20, i*5))
		}
	}}
	var cfg pipeline.Config
	k.routes(&cfg, &ovsdb.Switch{Bridge: "br-int"})
	needed := map[netip.Prefix]bool{}
	k.endpoints(func(ip netip.Addr) { needed[netip.PrefixFrom(ip, 26).Masked()] = true })
	for _, r := range cfg.Routes {
		delete(needed, r.Dst)
	}
	if len(needed) > 0 || len(k.ask) > 0 {
		t.Errorf("%d routes of endpoints are missing of %d, and %d stations to ask for", len(needed), len(cfg.Routes), len(k.ask))
	}
}

// Without a router on the bridge, endpoints that the kernel reaches by another interface are named, and no others.
func TestEndpointsByAnotherInterface(t *testing.T) {
	prefix, ip := netip.MustParsePrefix, netip.MustParseAddr
	n := &node.Network{Links: []node.Link{{Index: 2, Name: "br-int"}, {Index: 3, Name: "eth0"}}, Routes: []node.Route{
		{Dst: prefix("10.0.1.0/24"), Via: ip("172.16.0.3"), Link: 2}, {Dst: prefix("0.0.0.0/0"), Via: ip("192.0.2.1"), Link: 3}}}
	cfg := pipeline.Config{LocalIPs: []netip.Addr{ip("172.16.0.2"), ip("192.0.2.2")}} // one on each
	for endpoint, want := range map[string]bool{"10.0.1.5": false, "10.0.2.5": true, "192.0.2.2": false} {
		k := &kernel{network: n, endpoints: func(f func(netip.Addr)) { f(ip(endpoint)) }}
		warnings := k.routes(&cfg, &ovsdb.Switch{Bridge: "br-int"})
		if said := strings.Contains(strings.Join(warnings, "\n"), "1 endpoints by other interfaces"); said != want {
			t.Errorf("%s: %q", endpoint, warnings)
		}
	}
}

// What the kernel sends nothing to has a route that is closed, unless a better one comes first. Within it, what other links have stays with
// the router. Endpoints are counted where no narrower route is open.
func TestClosedRoutes(t *testing.T) {
	prefix, ip, mac := netip.MustParsePrefix, netip.MustParseAddr, flow.MAC{2, 0, 0, 0, 0, 1}
	k := &kernel{hops: map[netip.Addr]flow.MAC{}, network: &node.Network{
		Links: []node.Link{{Index: 2, Name: "br-int"}},
		Routes: []node.Route{{Dst: prefix("10.1.5.0/24"), Link: 3}, {Dst: prefix("10.1.6.0/24"), Via: ip("172.16.0.1"), Link: 2}, {Dst: prefix("10.1.0.0/16")},
			{Dst: prefix("10.2.0.0/16"), Link: 3, Metric: 1}, {Dst: prefix("10.2.0.0/16"), Metric: 2}, {Dst: prefix("0.0.0.0/0"), Via: ip("172.16.0.1"), Link: 2}},
		Neighbours: map[node.Station]node.Neighbour{{Link: 2, Addr: ip("172.16.0.1")}: {MAC: mac, State: node.Fresh}},
	}, endpoints: func(f func(netip.Addr)) {
		for _, at := range []string{"10.1.9.9", "10.1.4.4", "10.1.5.5", "10.1.6.6", "10.2.0.1", "8.8.8.8"} {
			f(ip(at))
		}
	}}
	var cfg pipeline.Config
	warnings := k.routes(&cfg, &ovsdb.Switch{Bridge: "br-int"})
	want := []pipeline.Route{{Dst: prefix("10.1.0.0/16"), Closed: true}, {Dst: prefix("10.1.5.0/24"), MAC: mac}, {Dst: prefix("10.1.6.0/24"), MAC: mac}}
	if !slices.Equal(cfg.Routes, want) {
		t.Errorf("%+v, want %+v", cfg.Routes, want)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "sends nothing to 2 endpoints, such as 10.1.4.4") {
		t.Errorf("%q", warnings)
	}
}

// Of more routes than the limit, those to the longest prefixes are copied: the shorter ones stand for more of the others.
func TestNeededRoutes(t *testing.T) {
	var list []pipeline.Route
	for i := range maxRoutes {
		list = append(list, pipeline.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24)})
	}
	longest := pipeline.Route{Dst: netip.MustParsePrefix("10.2.0.1/32")}
	some, more := (&kernel{}).neededRoutes(append(list, longest))
	if more != 1 || len(some) != maxRoutes || some[0].Dst != longest.Dst {
		t.Errorf("%d left out; the first of %d is %v", more, len(some), some[0].Dst)
	}
}

// Endpoints are walked once where nothing needs more: there may be hundreds of thousands, and the network is read again and again.
func TestEndpointsAreWalkedOnce(t *testing.T) {
	n := &node.Network{Links: []node.Link{{Index: 2, Name: "br-int"}}, Routes: []node.Route{
		{Dst: netip.MustParsePrefix("172.16.0.0/24"), Link: 2},
		{Dst: netip.MustParsePrefix("0.0.0.0/0"), Link: 2, Via: netip.MustParseAddr("172.16.0.1")},
	}}
	walks := 0
	k := &kernel{network: n, endpoints: func(func(netip.Addr)) { walks++ }}
	var cfg pipeline.Config
	k.routes(&cfg, &ovsdb.Switch{Bridge: "br-int"})
	k.mtus("br-int")
	if walks != 1 {
		t.Errorf("%d walks over all endpoints", walks)
	}
}
