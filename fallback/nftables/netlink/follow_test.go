//go:build linux

package netlink

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
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
	paths, _, err := c.Follow(t.Context(), k8s.IPv4, syn("40.0.0.1:80"))
	if err != nil || len(paths) != endpoints {
		t.Errorf("%d paths, %v; want %d", len(paths), err, endpoints)
	}
	for _, w := range paths {
		if w.Verdict != rules.Accepted || !w.Endpoint.IsValid() || w.Doubt {
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
	paths, _, err := c.Follow(t.Context(), k8s.IPv4, syn("40.0.0.1:80"))
	if err != nil || len(paths) != 2 || !paths[0].Doubt || !paths[1].Doubt {
		t.Errorf("%+v, %v; want two paths in doubt", paths, err)
	}
}

// What depends on how much came before, for each client or for all, is in doubt; what is counted or remembered only, is not.
func TestFollowLimits(t *testing.T) {
	for _, family := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		table, addr, packet := "ip", "ip saddr", syn("40.0.0.1:80")
		if family == k8s.IPv6 {
			table, addr = "ip6", "ip6 saddr"
			packet.From, packet.To = netip.MustParseAddrPort("[fd00::9]:49152"), netip.MustParseAddrPort("[fd00:40::1]:80")
		}
		for rule, doubt := range map[string]bool{
			"update @clients { %s limit rate over 10/second burst 5 packets } drop":         true,
			"update @clients { %s limit rate 10/second } accept; add rule %t f x drop":      true,
			"add @clients { %s ct count over 20 } drop":                                     true,
			"update @clients { %s quota over 25 mbytes } drop":                              true,
			"update @clients { %s counter limit rate over 10/second burst 5 packets } drop": true,
			"delete @clients { %s } drop":                                                   true,
			"meter m { %s limit rate over 10/second } drop":                                 true,
			"limit rate over 10/second drop":                                                true,
			"quota over 25 mbytes drop":                                                     true,
			"update @clients { %s } drop":                                                   false,
			"update @clients { %s counter } drop":                                           false,
		} {
			t.Run(table+" "+rule, func(t *testing.T) {
				c := isolated(t)
				text := strings.NewReplacer("%s", addr, "%t", table).Replace(rule)
				program(t, strings.ReplaceAll("add table %t f; add chain %t f x { type filter hook prerouting priority 0; }; "+
					"add set %t f clients { type "+map[string]string{"ip": "ipv4_addr", "ip6": "ipv6_addr"}[table]+"; flags dynamic; size 100; }; "+
					"add rule %t f x ", "%t", table)+text)
				paths, _, err := c.Follow(t.Context(), family, packet)
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range paths {
					if w.Doubt != doubt {
						t.Errorf("%+v; in doubt: want %t", w, doubt)
					}
				}
				if want := map[bool]int{true: 2, false: 1}[doubt]; len(paths) != want {
					t.Errorf("%d paths, want %d: %+v", len(paths), want, paths)
				}
			})
		}
	}
}

// Rules of lo are those of what the node sends to itself, in every hook, by the name of the device or its number.
func TestFollowLoopback(t *testing.T) {
	itself := netip.MustParseAddr("10.0.0.9")
	for _, tc := range []struct {
		hook, rule    string
		fromNode      bool
		to            string
		drops, doubts bool
	}{
		{"output", "oif lo drop", true, "40.0.0.1:80", false, false},
		{"output", "oifname lo drop", true, "40.0.0.1:80", false, false},
		{"output", "oif lo drop", true, "10.0.0.9:80", true, false},
		{"output", "oifname lo drop", true, "10.0.0.9:80", true, false},
		{"output", "oif != lo drop", true, "40.0.0.1:80", true, false},
		{"output", "oifname != lo drop", true, "40.0.0.1:80", true, false},
		{"output", "oifname eth0 drop", true, "40.0.0.1:80", false, true},
		{"output", "oif 2 drop", true, "40.0.0.1:80", false, true},
		{"postrouting", "oifname lo drop", true, "10.0.0.9:80", true, false},
		{"postrouting", "oif lo drop", false, "40.0.0.1:80", false, false},
		{"forward", "oif lo drop", false, "40.0.0.1:80", false, false},
		{"input", "iif != lo drop", true, "10.0.0.9:80", false, false},
		{"input", "iif != lo drop", false, "10.0.0.9:80", true, false},
		{"input", "iifname != lo drop", false, "10.0.0.9:80", true, false},
		{"input", "oifname lo drop", true, "10.0.0.9:80", false, false},
		{"prerouting", "iif lo drop", true, "10.0.0.9:80", true, false},
		{"prerouting", "iif lo drop", false, "40.0.0.1:80", false, false},
	} {
		t.Run(tc.hook+" "+tc.rule+" "+tc.to, func(t *testing.T) {
			c := isolated(t)
			program(t, "add table ip f; add chain ip f x { type filter hook "+tc.hook+" priority 0; }; add rule ip f x "+tc.rule)
			packet := syn(tc.to)
			packet.FromNode, packet.Local = tc.fromNode, []netip.Addr{itself}
			ways, _, err := c.Follow(t.Context(), k8s.IPv4, packet)
			doubt, dropped := false, true
			for _, w := range ways {
				doubt, dropped = doubt || w.Doubt, dropped && w.Verdict == rules.Dropped
			}
			if err != nil || doubt != tc.doubts || dropped != tc.drops {
				t.Errorf("%+v, %v; want it dropped: %t, in doubt: %t", ways, err, tc.drops, tc.doubts)
			}
		})
	}
}

// Chains that are bound to a device see its packets before any that Follow passes: those of the families netdev and inet, with one
// device or several. Chains of other devices, and those of all, are left out.
func TestOfDevice(t *testing.T) {
	c := isolated(t)
	program(t, "add table netdev a; add chain netdev a one { type filter hook ingress device lo priority 0; }; "+
		"add chain netdev a several { type filter hook ingress devices = { lo } priority 1; }; add chain netdev a none; "+
		"add table inet b; add chain inet b in { type filter hook ingress device lo priority 0; }; "+
		"add chain inet b every { type filter hook prerouting priority 0; }")
	got, err := c.OfDevice("lo")
	want := []string{"table netdev a, chain one", "table netdev a, chain several", "table inet b, chain in"}
	if slices.Sort(got[:min(2, len(got))]); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if got, err := c.OfDevice("eth0"); err != nil || len(got) > 0 {
		t.Errorf("another device: %q, %v", got, err)
	}
}
