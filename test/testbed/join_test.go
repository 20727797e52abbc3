//go:build linux

package testbed

import (
	"net/netip"
	"strings"
	"testing"
)

// addressing are addresses for bed n of several that are joined; their nodes share a subnet if same is true.
func addressing(n byte, same bool) Addressing {
	subnet := 2 + n
	if same {
		subnet = 3
	}
	return Addressing{
		Node:       netip.AddrFrom4([4]byte{192, 168, subnet, 10 + n}),
		Remote:     netip.AddrFrom4([4]byte{192, 168, subnet, 20 + n}),
		Pods:       netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 18, n, 0}), 24),
		RemotePods: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 18, 100 + n, 0}), 24),
	}
}

// reach4 asks over IPv4 and wants the client unchanged.
func reach4(t *testing.T, from, to *Host) {
	t.Helper()
	a, err := from.Ask(t.Context(), "tcp", netip.AddrPortFrom(to.IP4, 80).String())
	if err != nil {
		t.Error(err)
	} else if a.Pod != to.Name || a.Client.Addr() != from.IP4 {
		t.Errorf("%s -> %s: answered by %s, which saw %s", from.Name, to.IP4, a.Pod, a.Client)
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		same bool // the nodes share a subnet
		opts Options
	}{
		{"own subnets", false, Options{Standalone: true}},
		{"one subnet", true, Options{Standalone: true}},
		{"one subnet, node outside", true, Options{Standalone: true, NodeOutside: true}},
		{"one subnet, no switch", true, Options{Plane: Linux}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var beds []*Bed
			var pods []*Host
			for n := range byte(2) {
				c.opts.IPv4 = addressing(n, c.same)
				b := Start(t, c.opts)
				p, err := b.AddPod(PodSpec{Name: "pod-" + string('a'+rune(n))})
				if err != nil {
					t.Fatal(err)
				}
				b.Node.Name += "-" + string('a'+rune(n))
				beds, pods = append(beds, b), append(pods, p.Host)
				for _, h := range []*Host{p.Host, b.Node, b.External} {
					if _, err := h.ServeTCP(80); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := Join(beds[0], beds[1]); err != nil {
				t.Fatal(err)
			}
			all := []*Host{beds[0].Node, pods[0], beds[0].External, beds[1].Node, pods[1]}
			for _, from := range all {
				for _, to := range all {
					reach4(t, from, to)
				}
			}
		})
	}
}

func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	a, b := Start(t, Options{}), Start(t, Options{})
	if err := Join(a, a); err == nil {
		t.Error("a bed is joined to itself")
	}
	if err := Join(a, b); err == nil || !strings.Contains(err.Error(), "172.16.0.2/32 is in both beds") {
		t.Errorf("beds with the same addresses: %v", err)
	}
}
