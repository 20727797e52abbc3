//go:build linux

package packets

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A SYN to a ClusterIP meets its Service before the connection tracker (table 3). What the tracker knows of the connection
// must count all the same.

// A SYN that the client sends again goes where the first one went, although other endpoints are in force by then,
// and, on the kernel datapath, its hash is another one (txrehash).
func TestOpeningAgain(t *testing.T) {
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	first, others := c.remotes[0], []*testbed.Pod{c.pods[1], c.remotes[1]}
	client := c.pods[0]
	for _, f := range []struct {
		to       string
		old, new any
		route    []string
	}{
		{"40.0.0.1:80", slice(s4, 8080, at(first.IP4)), slice(s4, 8080, ats(others[0].IP4, others[1].IP4)...),
			[]string{client.IP4.String() + "/32"}},
		{"[fd00:40::1]:80", slice(s6, 8080, at(first.IP6)), slice(s6, 8080, ats(others[0].IP6, others[1].IP6)...),
			[]string{client.IP6.String() + "/128"}},
	} {
		c.put(f.old)
		c.settle()
		silence := append([]string{"ip", "route", "add", "blackhole"}, f.route...)
		_, err := c.Exec(first.Host, silence...)
		must(t, err)
		opening := c.sends(t, client.Host, "tcp", f.to)
		c.tracked(netip.MustParseAddrPort(f.to).Addr().String()) // and nobody can answer it
		c.put(f.new)
		c.settle()
		must(t, c.Settle())
		if a, err := c.pods[2].Ask(c.ctx, "tcp", f.to); err != nil || a.Pod == first.Name {
			t.Errorf("%s: a new connection is answered by %q, %v", f.to, a.Pod, err)
		}
		silence[2] = "del"
		_, err = c.Exec(first.Host, silence...)
		must(t, err)
		if who := opening.who(t); who != first.Name {
			t.Errorf("%s: the SYN sent again was answered by %q; want %s", f.to, who, first.Name)
		}
	}
}

// A client that lost a connection without a word opens it again from the same port. At night it also uses one port
// again and again, closed in order or by a reset.
func TestOpeningAfterALoss(t *testing.T) {
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	c.put(slice(s4, 8080, at(c.pods[1].IP4), at(c.remotes[0].IP4)), slice(s6, 8080, at(c.pods[1].IP6), at(c.remotes[0].IP6)))
	c.settle()
	client := c.pods[0]
	for to, vip := range map[string]string{"40.0.0.1:80": "40.0.0.1/32", "[fd00:40::1]:80": "fd00:40::1/128"} {
		for i := range nightly.Count(1, 4) { // a second each
			o := testbed.DialOptions{LocalPort: 21000 + i, Reset: true}
			conn, err := client.Hold(c.ctx, to, o)
			must(t, err)
			_, err = c.Exec(client.Host, "ip", "route", "add", "blackhole", vip)
			must(t, err)
			must(t, conn.Close())
			_, err = c.Exec(client.Host, "ip", "route", "del", "blackhole", vip)
			must(t, err)
			again, err := client.Hold(c.ctx, to, o)
			if err != nil {
				t.Errorf("%s, from port %d again: %v", to, o.LocalPort, err)
				continue
			}
			must(t, again.Close())
		}
		for i := range nightly.Count(0, 60) {
			o := testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: 22000, Reset: i >= 30}}
			if _, err := client.AskWith(c.ctx, "tcp", to, o); err != nil {
				t.Errorf("%s, reset %t, connection %d: %v", to, i >= 30, i, err)
			}
		}
	}
}

// With session affinity the datapath keeps as much for each client as without the hash: one flow that commits its connections,
// not one for each value of it.
func TestOpeningWithAffinityIsCachedOnce(t *testing.T) {
	nightly.Only(t, "it measures cost; TestOneEndpointIsNotHashed counts cached flows")
	pinned := service("pinned", "40.0.0.1", affinity(600))
	c := start(t, pinned)
	c.put(slice(pinned, 8080, at(c.pods[1].IP4), at(c.pods[2].IP4)))
	c.settle()
	c.reachable(t, "40.0.0.1:80") // makes the pin
	_, err := c.Appctl("dpctl/del-flows")
	must(t, err)
	if _, errs := c.pods[0].Many(c.ctx, 60, 1, "40.0.0.1:80"); len(errs) > 0 {
		t.Fatal(errs[0])
	}
	out, err := c.Appctl("dpctl/dump-flows")
	must(t, err)
	if n := strings.Count(out, "commit,zone=1001"); n != 1 {
		t.Errorf("%d cached flows commit one client's connections; want one:\n%s", n, out)
	}
}
