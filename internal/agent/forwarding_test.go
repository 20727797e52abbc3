//go:build linux

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/k8s"
)

// A kernel that does not forward is a warning of status, and one more of nkp_warnings.
func TestNotForwarding(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	runtime.LockOSThread() // and the thread ends with the test, with its network namespace
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	a := idle(t)
	a.planes = a.main
	a.model.Node.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	ended := make(chan struct{})
	defer close(ended)
	go func() { // as the agent's loop does
		for {
			select {
			case f := <-a.asks:
				f()
			case <-ended:
				return
			}
		}
	}()

	var counted [2]float64
	for i, forwards := range []string{"1", "0"} {
		must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(forwards), 0o644))
		a.collect(func(d *metrics.Definition, v float64, _ ...string) {
			if d == metrics.Warnings {
				counted[i] = v
			}
		})
		s, err := a.status(t.Context())
		must(t, err)
		named := slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.HasPrefix(w, "net.ipv4.ip_forward is 0") })
		if named != (forwards == "0") {
			t.Errorf("ip_forward %s: %q", forwards, s.Warnings)
		}
	}
	if counted[1] != counted[0]+1 {
		t.Errorf("nkp_warnings is %v where the kernel forwards, and %v where it does not", counted[0], counted[1])
	}
}

// The packets that stand for all Services' are of a few ports, whatever their number, and one leads to none of their endpoints.
func TestForwarded(t *testing.T) {
	m := &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	m.Node.IPs = []netip.Addr{netip.MustParseAddr("172.16.0.2")}
	m.Node.Local = m.Node.IPs
	add := func(name string, endpoint netip.Addr) {
		sp := &k8s.ServicePort{ClusterEndpoints: []k8s.Endpoint{{Addr: netip.AddrPortFrom(endpoint, 8080)}}}
		sp.Frontends = []k8s.Frontend{{Address: netip.MustParseAddr("40.0.0.1"), Port: 80}}
		m.Ports[k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: name}, Family: k8s.FamilyOf(endpoint), Protocol: "TCP"}] = sp
	}
	count := func(f k8s.Family, want int) (list []rules.Packet) {
		t.Helper()
		if list = forwarded(m, f); len(list) != want {
			t.Errorf("%d packets of %s, want %d: %v", len(list), f, want, list)
		}
		return list
	}
	add("here", m.Node.IPs[0])
	count(k8s.IPv4, 0)
	add("one", netip.MustParseAddr("10.0.1.9"))
	list := count(k8s.IPv4, 2)
	if at := list[0].IPTables.Paths[0].Endpoint; at.Addr() == netip.MustParseAddr("10.0.1.9") || at.Port() == 8080 {
		t.Errorf("no packet to another endpoint and port: %v", at)
	}
	for i := range 5000 {
		add(fmt.Sprint("web", i), netip.MustParseAddr("10.0.1.9"))
		add(fmt.Sprint("six", i), netip.MustParseAddr("fd00:b::9"))
	}
	count(k8s.IPv4, 1+maxForwarded)
	count(k8s.IPv6, 0) // a family that the node has not
}

// A family without Services that the kernel forwards costs no walk over those of the other, until something of it changes.
func TestForwardedWalks(t *testing.T) {
	a := idle(t)
	a.model = &k8s.Model{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	a.model.Node.IPs = []netip.Addr{netip.MustParseAddr("172.16.0.2"), netip.MustParseAddr("fd00::2")}
	name := func(f k8s.Family) k8s.PortName {
		return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "web"}, Family: f, Protocol: "TCP"}
	}
	if list := a.toForward(k8s.IPv6); len(list) != 0 {
		t.Fatalf("without a Service: %v", list)
	}
	a.model.Ports[name(k8s.IPv6)] = &k8s.ServicePort{
		ClusterEndpoints: []k8s.Endpoint{{Addr: netip.MustParseAddrPort("[fd00:b::9]:80")}},
		Frontends:        []k8s.Frontend{{Address: netip.MustParseAddr("fd00:40::1"), Port: 80}},
	}
	for _, step := range []struct {
		what string
		c    k8s.Changes
		want int
	}{
		{"nothing has changed", k8s.Changes{}, 0},
		{"the other family has", k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name(k8s.IPv4): nil}}, 0},
		{"its own has", k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name(k8s.IPv6): nil}}, 2},
		{"nothing has changed again", k8s.Changes{}, 2},
	} {
		a.forwardsMore(&step.c)
		if list := a.toForward(k8s.IPv6); len(list) != step.want {
			t.Errorf("%s: %d packets, want %d", step.what, len(list), step.want)
		}
	}
	a.noneForwarded[k8s.IPv6] = true
	a.forwardsMore(&k8s.Changes{Node: true})
	if list := a.toForward(k8s.IPv6); len(list) != 2 {
		t.Errorf("the node has changed: %d packets", len(list))
	}
}
