//go:build linux

package packets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// onKernelDatapath reports whether the beds' bridges are the kernel's; see test/kernel.
func onKernelDatapath() bool { return testbed.DefaultDatapath() == testbed.KernelDatapath }

func requireKernelDatapath(t *testing.T) {
	t.Helper()
	if !onKernelDatapath() {
		t.Skip("the userspace datapath has no such thing; make test-kernel runs it on the kernel's")
	}
}

// SCTP is tracked with its ports: a client's associations spread over the endpoints, and a port that was used through
// a Service and then directly to the same endpoint, or the other way round, works both times.
func TestKernelSCTP(t *testing.T) {
	requireKernelDatapath(t)
	sctp := protocol(v1.ProtocolSCTP)
	all, none := service("all", "40.0.0.1", sctp), service("none", "40.0.0.3", sctp)
	c := newCluster(t, testbed.Options{})
	c.begin(none, all, slice(all, 8080, ats(c.pods[1].IP4, c.pods[2].IP4, c.remotes[0].IP4, c.remotes[1].IP4)...))
	who := map[string]int{}
	for i := range 40 {
		o := testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: 30000 + i}}
		a, err := c.pods[0].AskWith(c.ctx, "sctp", "40.0.0.1:80", o)
		if err != nil {
			t.Fatalf("from port %d: %v\n%s", 30000+i, err, c.explain("sctp", "40.0.0.1:80"))
		}
		who[a.Pod]++
	}
	if len(who) != 4 {
		t.Errorf("40 associations reached %v, want all 4 endpoints", who)
	}
	c.reusesPorts(t, v1.ProtocolSCTP)
	// Nobody there: told so at once, not by silence.
	if _, err := c.pods[0].Ask(c.ctx, "sctp", "40.0.0.3:80"); err == nil || errors.Is(err, testbed.ErrTimeout) {
		t.Errorf("without endpoints: %v, want an ICMP error", err)
	}
}

// What a client sends before the first answer reaches the endpoint too: datagrams of a protocol that never answers, two
// queries of one socket, a SYN sent again. The kernel's ct(nat) alone does not translate them: to it the connection is
// still new.
func TestBeforeTheFirstAnswer(t *testing.T) {
	const datagrams = 5
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	endpoints := []*testbed.Pod{c.remotes[0], c.pods[1], c.pods[0]}
	received := make([]chan netip.Addr, len(endpoints)) // the clients' addresses as the endpoints see them
	for i, e := range endpoints {
		s4 := service(nth("v4", i), fmt.Sprintf("40.0.0.%d", i+1), protocol(v1.ProtocolUDP), exposed(int32(30040+i)))
		s6 := service(nth("v6", i), fmt.Sprintf("fd00:40::%d", i+1), protocol(v1.ProtocolUDP), exposed(int32(30060+i)))
		c.put(s4, slice(s4, 8080, at(e.IP4)), s6, slice(s6, 8080, at(e.IP6)))
		l, err := e.ListenPacket(":8080")
		must(t, err)
		t.Cleanup(func() { l.Close() })
		received[i] = make(chan netip.Addr, 10*datagrams)
		go func() { // ends with the listener
			for buf := make([]byte, 64); ; {
				_, from, err := l.ReadFrom(buf)
				if err != nil {
					return
				}
				received[i] <- from.(*net.UDPAddr).AddrPort().Addr().Unmap()
			}
		}()
	}
	web := service("web", "40.0.0.10")
	_, err := c.remotes[1].ServeTCP(8080)
	must(t, err)
	c.put(web, slice(web, 8080, at(c.remotes[1].IP4)))
	c.run()
	c.settle()
	for i, e := range endpoints {
		for _, tc := range []struct {
			from *testbed.Host
			to   string
		}{
			{c.pods[0].Host, fmt.Sprintf("40.0.0.%d:80", i+1)},
			{c.pods[0].Host, fmt.Sprintf("[fd00:40::%d]:80", i+1)},
			{c.External, hostPort(testbed.NodeIP4, uint16(30040+i))},
			{c.External, hostPort(testbed.NodeIP6, uint16(30060+i))},
		} {
			// At once they are all on their way before the first is committed; apart, each meets the connection of the first.
			for _, apart := range []bool{false, true} {
				conn, err := tc.from.DialUDP(c.ctx, tc.to, testbed.DialOptions{})
				must(t, err)
				like := netip.MustParseAddrPort(tc.to).Addr()
				want := tc.from.IP(like)
				if tc.from == c.External || e.Host == tc.from {
					want = c.Node.IP(like)
				}
				arrives := func(n int) {
					what := fmt.Sprintf("%s -> %s, apart %t: datagram %d", tc.from.Name, tc.to, apart, n)
					if from := wait.Receive(t, what, received[i]); from != want {
						t.Errorf("%s came from %v, want %v", what, from, want)
					}
				}
				for n := range datagrams {
					conn.Write([]byte("?")) // an ICMP error of the one before is no reason to stop
					if apart {
						arrives(n)
					}
				}
				for n := range datagrams {
					if !apart {
						arrives(n)
					}
				}
				conn.Close()
			}
		}
	}
	// The endpoint is out of reach when the first SYN comes, and within reach for the second.
	pod := netip.PrefixFrom(c.remotes[1].IP4, 32)
	must(t, c.Remote.AddRoute(pod, netip.Addr{}, "eth0"))
	conn := c.sends(t, c.pods[0].Host, "tcp", "40.0.0.10:80")
	c.tracked("40.0.0.10")
	must(t, c.Remote.AddRoute(pod, netip.Addr{}, c.remotes[1].Interface))
	c.eventually("the SYN sent again is answered", func() error {
		yes, err := conn.answered()
		if !yes {
			return errors.New("no answer")
		}
		if err != nil {
			t.Fatal(err)
		}
		return nil
	})
}

// The kernel datapath needs neither OpenFlow nor the control socket to forget connections: nkp lists and deletes them itself.
func TestKernelStaleUDP(t *testing.T) {
	requireKernelDatapath(t)
	c := newCluster(t, testbed.Options{})
	must(t, os.Remove(filepath.Join(c.RunDir, "ovs-vswitchd.pid")))
	c.flags = append(c.flags, "--openflow", olderSwitch(t, c))
	staleUDP(t, c)
	if lacks, warnings := c.lacks(t); !strings.Contains(lacks, "netlink") || strings.Contains(warnings, "conntrack entries") {
		t.Errorf("status says that the switch lacks %q, and warns %q", lacks, warnings)
	}
}

// In another network namespace than the switch's, nkp sees another table, and asks the switch.
func TestKernelStaleUDPElsewhere(t *testing.T) {
	requireKernelDatapath(t)
	c := newCluster(t, testbed.Options{})
	c.runsOn = c.External
	staleUDP(t, c)
}
