//go:build linux

package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A SYN to a ClusterIP meets its Service before the connection tracker (table 3). What the tracker knows of the connection
// must count all the same.

// A SYN that the client sends again goes where the first one went, although other endpoints are in force by then.
func TestOpeningAgain(t *testing.T) {
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	c.servePods(t)
	first, second := c.remotes[0], c.pods[1]
	client := c.pods[0]
	for _, f := range []struct {
		to       string
		old, new any
		route    []string
	}{
		{"40.0.0.1:80", slice(s4, 8080, at(first.IP4)), slice(s4, 8080, at(second.IP4)), []string{client.IP4.String() + "/32"}},
		{"[fd00:40::1]:80", slice(s6, 8080, at(first.IP6)), slice(s6, 8080, at(second.IP6)), []string{client.IP6.String() + "/128"}},
	} {
		c.put(f.old)
		c.settle()
		silence := append([]string{"ip", "route", "add", "blackhole"}, f.route...)
		_, err := c.Exec(first.Host, silence...)
		must(t, err)
		opening := c.sends(t, client.Host, "tcp", f.to)
		c.eventually("the first SYN is tracked", func() error { // and nobody can answer it
			out, err := c.Appctl("dpctl/dump-conntrack", "zone=1001")
			if err == nil && !strings.Contains(out, "dst="+netip.MustParseAddrPort(f.to).Addr().String()+",") {
				err = errors.New(out)
			}
			return err
		})
		c.put(f.new)
		c.settle()
		must(t, c.Settle())
		c.ask(t, c.pods[2].Host, "tcp", f.to, second.Name)
		silence[2] = "del"
		_, err = c.Exec(first.Host, silence...)
		must(t, err)
		if who := opening.who(t); who != first.Name {
			t.Errorf("%s: the SYN sent again was answered by %q; want %s", f.to, who, first.Name)
		}
	}
}

// The kernel gives a socket another hash when it sends a SYN again (txrehash), and the kernel datapath chooses by that hash. The
// connection stays with the endpoint that its first SYN chose.
func TestOpeningRehashed(t *testing.T) {
	nightly.Only(t, "a SYN sent again takes a second; TestOpeningAgain has one")
	s4 := service("web4", "40.0.0.1")
	c := start(t, s4)
	c.servePods(t)
	client, ends := c.pods[0], []*testbed.Pod{c.pods[1], c.pods[2], c.remotes[0], c.remotes[1]}
	byAddress := map[string]string{}
	var ips []netip.Addr
	for _, e := range ends {
		ips, byAddress[e.IP4.String()] = append(ips, e.IP4), e.Name
	}
	c.put(slice(s4, 8080, ats(ips...)...))
	c.settle()
	silence := func(what string) {
		for _, e := range ends {
			_, err := c.Exec(e.Host, "ip", "route", what, "blackhole", client.IP4.String()+"/32")
			must(t, err)
		}
	}
	silence("add")
	const connections, firstPort = 16, 23000
	answers := make([]string, connections)
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			o := testbed.DialOptions{LocalPort: firstPort + i}
			if conn, err := client.Hold(c.ctx, "40.0.0.1:80", o); err != nil {
				answers[i] = err.Error()
			} else {
				answers[i] = conn.Who
				conn.Close()
			}
		})
	}
	chosen := map[int]string{} // by the client's port
	entry := regexp.MustCompile(`orig=\(src=10\.0\.0\.11,dst=40\.0\.0\.1,sport=(\d+),dport=80\),reply=\(src=([0-9.]+)`)
	wait.NoError(t, "an entry of each first SYN", func() error {
		out, err := c.Appctl("dpctl/dump-conntrack", "zone=1001")
		must(t, err)
		for _, m := range entry.FindAllStringSubmatch(out, -1) {
			port, _ := strconv.Atoi(m[1])
			if chosen[port] == "" {
				chosen[port] = byAddress[m[2]]
			}
		}
		if len(chosen) < connections {
			return fmt.Errorf("%d of %d", len(chosen), connections)
		}
		return nil
	})
	silence("del")
	wg.Wait()
	seen := map[string]bool{}
	for i, who := range answers {
		seen[who] = true
		if who != chosen[firstPort+i] {
			t.Errorf("port %d: the first SYN chose %s, one sent again was answered by %s", firstPort+i, chosen[firstPort+i], who)
		}
	}
	if len(seen) < 2 {
		t.Errorf("all connections reached %v, so that nothing is shown", seen)
	}
	var stats []byte
	must(t, client.Do(func() (err error) {
		stats, err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	}))
	if n := netstat(string(stats), "TcpExt:", "TcpTimeoutRehash"); n < connections {
		t.Errorf("the client's kernel chose %d hashes anew for %d connections", n, connections)
	}
}

// netstat returns a counter of /proc/net/netstat: a line of names and one of numbers for each group.
func netstat(text, group, name string) int {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != group {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		if at := slices.Index(names, name); at > 0 && at < len(f) {
			n, _ := strconv.Atoi(f[at])
			return n
		}
	}
	return -1
}

// A client that lost a connection without a word opens it again from the same port.
func TestOpeningAfterALoss(t *testing.T) {
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	c.servePods(t)
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
	}
}

// The same port again and again, closed in order or by a reset.
func TestOpeningFromOnePort(t *testing.T) {
	nightly.Only(t, "TestOpeningAfterALoss and TestPortReuse use ports again")
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	c.servePods(t)
	c.put(slice(s4, 8080, at(c.pods[1].IP4), at(c.remotes[0].IP4)), slice(s6, 8080, at(c.pods[1].IP6), at(c.remotes[0].IP6)))
	c.settle()
	for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80"} {
		for _, reset := range []bool{false, true} {
			o := testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: 22000, Reset: reset}}
			for i := range 30 {
				if _, err := c.pods[0].AskWith(c.ctx, "tcp", to, o); err != nil {
					t.Errorf("%s, reset %t, connection %d: %v", to, reset, i, err)
				}
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
	c.servePods(t)
	c.put(slice(pinned, 8080, at(c.pods[1].IP4), at(c.pods[2].IP4)))
	c.settle()
	_, err := c.pods[0].AskWith(c.ctx, "tcp", "40.0.0.1:80", testbed.AskOptions{}) // makes the pin
	must(t, err)
	if commits := c.cachedFor(t, "commit,zone=1001", "40.0.0.1:80"); len(commits) != 1 {
		t.Errorf("cached flows that commit one client's connections; want one:\n%s", strings.Join(commits, ""))
	}
}

// cachedFor returns those flows that the datapath caches for 60 connections of the first pod to each address which have this in
// their text.
func (c *cluster) cachedFor(t *testing.T, part string, to ...string) (lines []string) {
	t.Helper()
	_, err := c.Appctl("dpctl/del-flows")
	must(t, err)
	for _, a := range to {
		if _, errs := c.pods[0].Many(c.ctx, 60, 1, a); len(errs) > 0 {
			t.Fatal(errs[0])
		}
	}
	out, err := c.Appctl("dpctl/dump-flows")
	must(t, err)
	for line := range strings.Lines(out) {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return lines
}
