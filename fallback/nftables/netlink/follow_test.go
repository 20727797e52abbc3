//go:build linux

package netlink

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// syn is a packet of TCP from 10.0.0.9.
func syn(to string) rules.Packet {
	return rules.Packet{Protocol: "TCP", From: netip.MustParseAddrPort("10.0.0.9:49152"), To: netip.MustParseAddrPort(to)}
}

// Every endpoint of a large Service is found, each once.
func TestFollowLargeService(t *testing.T) {
	c := isolated(t)
	const endpoints = 5000
	sp := &k8s.ServicePort{Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "a", Name: "b"}, Protocol: "TCP", Family: k8s.IPv4}}
	sp.Frontends = []k8s.Frontend{{Type: k8s.ClusterIP, Address: netip.MustParseAddr("40.0.0.1"), Port: 80}}
	for i := range endpoints {
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, k8s.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)})
	}
	m := &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{sp.Name: sp}}
	install(t, c, rules.NewCompiler(rules.Config{}, k8s.IPv4, m).Ruleset(m, nil))
	ways, _, err := c.Follow(t.Context(), k8s.IPv4, syn("40.0.0.1:80"))
	if err != nil || len(ways) != endpoints {
		t.Errorf("%d ways, %v; want %d", len(ways), err, endpoints)
	}
	for _, w := range ways {
		if w.Fate != rules.Accepted || !w.Endpoint.IsValid() || w.Doubt {
			t.Fatalf("%+v", w)
		}
	}
}

// A foreign table that multiplies random numbers ends with an error, as does one whose evaluation takes too long; chains that are deep do not
// count as a way.
func TestFollowBounds(t *testing.T) {
	c := isolated(t)
	program(t, "add table ip f; add chain ip f x { type filter hook prerouting priority 0; }; "+
		"add rule ip f x numgen random mod 60000 != 1 numgen random mod 60000 != 1 drop")
	if _, _, err := c.Follow(t.Context(), k8s.IPv4, syn("40.0.0.1:80")); !errors.Is(err, errTooMany) {
		t.Errorf("%v; want %v", err, errTooMany)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if _, _, err := c.Follow(ctx, k8s.IPv4, syn("40.0.0.1:80")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	program(t, "flush chain ip f x; add rule ip f x numgen random mod 100000 < 7 drop") // more numbers than are tried
	ways, _, err := c.Follow(t.Context(), k8s.IPv4, syn("40.0.0.1:80"))
	if err != nil || len(ways) != 2 || !ways[0].Doubt || !ways[1].Doubt {
		t.Errorf("%+v, %v; want two ways in doubt", ways, err)
	}
}
