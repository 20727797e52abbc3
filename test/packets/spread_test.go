//go:build linux

package packets

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// manyAddresses returns pod the addresses 10.0.200.1.. and serves on all of them; every server names its own address.
func (c *cluster) manyAddresses(t *testing.T, pod *testbed.Pod, n int) []discoveryv1.Endpoint {
	t.Helper()
	es := c.addAddresses(t, pod, n)
	l, err := pod.Listen("0.0.0.0:8080")
	must(t, err)
	go func() { // ends with the listener, which the bed closes
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "%s %s\n", conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Addr(), conn.RemoteAddr())
			conn.Close()
		}
	}()
	return es
}

// addAddresses gives pod, on the second node, the addresses 10.0.200.1.. and returns them as endpoints.
func (c *cluster) addAddresses(t *testing.T, pod *testbed.Pod, n int) []discoveryv1.Endpoint {
	t.Helper()
	es := make([]discoveryv1.Endpoint, n)
	for i := range n {
		ip := netip.AddrFrom4([4]byte{10, 0, byte(200 + i/250), byte(1 + i%250)})
		must(t, pod.AddAddr("lo", netip.PrefixFrom(ip, 32)))
		es[i] = at(ip)
	}
	must(t, c.Router.AddRoute(netip.MustParsePrefix("10.0.200.0/21"), testbed.RemoteIP4, "remote"))
	must(t, c.Remote.AddRoute(netip.MustParsePrefix("10.0.200.0/21"), pod.IP4, pod.Name))
	return es
}

// Connections spread evenly, whatever the number of endpoints.
func TestSpread(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	es := c.manyAddresses(t, c.remotes[0], 300)
	counts := []int{3, 100}
	if nightly.Is() {
		counts = []int{2, 3, 10, 100, 300}
	}
	for i, n := range counts {
		s := service(fmt.Sprint("s", n), fmt.Sprintf("40.0.0.%d", i+1))
		c.put(s, slice(s, 8080, es[:n]...))
	}
	c.run()
	c.settle()
	connections := nightly.Count(1000, 3000)
	for i, n := range counts {
		c.reachable(t, fmt.Sprintf("40.0.0.%d:80", i+1))
		before := c.upcalls(t)
		who, errs := c.pods[0].Many(c.ctx, connections, 16, fmt.Sprintf("40.0.0.%d:80", i+1))
		if len(errs) > 0 {
			t.Fatalf("%d endpoints: %d of %d connections failed, first: %v", n, len(errs), connections, errs[0])
		}
		most, least := 0, connections
		for _, k := range who {
			most, least = max(most, k), min(least, k)
		}
		if len(who) < n {
			least = 0
		}
		share := float64(connections) / float64(n)
		variance := float64(n-len(who)) * share * share / float64(n) // endpoints that got none
		for _, k := range who {
			variance += (float64(k) - share) * (float64(k) - share) / float64(n)
		}
		t.Logf("%3d endpoints: %d to %d connections each, fair share %.1f, variance %.2f shares; %.2f upcalls per connection", n, least, most, share, variance/share,
			float64(c.upcalls(t)-before)/float64(connections))

		// The layout gives an endpoint a quarter more or less than its share at most; the rest is chance.
		const layout = 0.25
		fewest, _ := chance.Bounds(connections, (1-layout)/float64(n))
		_, greatest := chance.Bounds(connections, min(1, (1+layout)/float64(n)))
		if least < fewest || most > greatest {
			t.Errorf("%d endpoints: %d to %d connections each, want %d to %d", n, least, most, fewest, greatest)
		}
		// So wide a limit for one endpoint says little; their variance says more. Even draws have a variance of one share. That of 100
		// endpoints is above 2.5 by chance once in 1e12 runs (Chernoff's bound), of more even more seldom.
		if n >= 100 && variance/share > 2.5 {
			t.Errorf("%d endpoints: the variance of their connections is %.2f shares; want 2.5 at most", n, variance/share)
		}
	}
}

// reachable ends the test at once if nobody answers, rather than after thousands of time-outs.
func (c *cluster) reachable(t *testing.T, to string) {
	t.Helper()
	if _, err := c.pods[0].Ask(c.ctx, "tcp", to); err != nil {
		t.Fatalf("%v\n%s", err, c.explain("tcp", to))
	}
}

// upcalls counts the packets that the datapath had to ask about so far.
func (c *cluster) upcalls(t *testing.T) int {
	t.Helper()
	out, err := c.Appctl("dpctl/show")
	must(t, err)
	for line := range strings.Lines(out) {
		var hit, missed, lost int
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "lookups: hit:%d missed:%d lost:%d", &hit, &missed, &lost); err == nil {
			return missed
		}
	}
	t.Fatalf("no lookups in %q", out)
	return 0
}

// A Service with 2,000 endpoints works, with and without affinity, and comes back after somebody deletes all groups.
func TestTwoThousandEndpoints(t *testing.T) {
	nightly.Only(t, "it is large; TestSpread has 300")
	c := newCluster(t, testbed.Options{})
	es := c.manyAddresses(t, c.remotes[0], 2000)
	plain := service("plain", "40.0.0.1")
	sticky := service("sticky", "40.0.0.2", affinity(60))
	for _, s := range []*v1.Service{plain, sticky} {
		for i := 0; i < 2000; i += 1000 { // the API's limit for one slice
			sl := slice(s, 8080, es[i:i+1000]...)
			sl.Name = fmt.Sprintf("%s-%d", s.Name, i)
			c.put(sl)
		}
		c.put(s)
	}
	c.run()
	c.settle()
	check := func(when string) {
		t.Helper()
		c.reachable(t, "40.0.0.1:80")
		c.reachable(t, "40.0.0.2:80")
		who, errs := c.pods[0].Many(c.ctx, 500, 8, "40.0.0.1:80")
		if len(errs) > 0 || len(who) < 350 { // 442 by chance, with a standard deviation of 7
			t.Errorf("%s: 500 connections reached %d endpoints, %d failed %v", when, len(who), len(errs), firstOf(errs))
		}
		who, errs = c.pods[0].Many(c.ctx, 20, 1, "40.0.0.2:80")
		if len(errs) > 0 || len(who) != 1 {
			t.Errorf("%s: with affinity one client reached %d endpoints, %d failed %v", when, len(who), len(errs), firstOf(errs))
		}
	}
	check("at first")
	_, err := c.Ofctl("del-groups", c.Bridge)
	must(t, err)
	began := time.Now()
	c.settle()
	t.Logf("repaired %v after del-groups", time.Since(began).Round(time.Millisecond))
	check("after del-groups")
	// Describing the groups must not be the switch's end: no group is above 64 KB.
	if _, err := c.Ofctl("dump-groups", c.Bridge); err != nil {
		t.Error(err)
	}
}

func firstOf(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

func affinity(seconds int32) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

// A client's connections make one pin. A Service that goes while no nkp runs leaves none behind, and the pins of
// others stay. That pins go with their endpoint, are renewed and end is row 19 of test/semantics.
func TestAffinity(t *testing.T) {
	pinned := affinity(3600)
	s4, s6 := service("web4", "40.0.0.1", pinned), service("web6", "fd00:40::1", pinned)
	gone := service("gone", "40.0.0.3", pinned)
	c := newCluster(t, testbed.Options{})
	c.begin(s4, slice(s4, 8080, ats(c.pods[1].IP4, c.pods[2].IP4, c.remotes[0].IP4, c.remotes[1].IP4)...),
		s6, slice(s6, 8080, ats(c.pods[1].IP6, c.pods[2].IP6, c.remotes[0].IP6, c.remotes[1].IP6)...),
		gone, slice(gone, 8080, at(c.remotes[0].IP4)))
	sole := func(to string) (who string) {
		t.Helper()
		answers, errs := c.pods[0].Many(c.ctx, 30, 4, to)
		if len(answers) != 1 || len(errs) > 0 {
			t.Fatalf("%s: one client reached %v, errors %v", to, answers, errs)
		}
		for who = range answers {
		}
		return who
	}
	served := map[string]string{}
	for i, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80", "40.0.0.3:80"} {
		served[to] = sole(to)
		if n := c.pins(t); n != i+1 {
			t.Errorf("%s: %d pins, then %d", to, i, n)
		}
	}
	must(t, c.agent.Stop(syscall.SIGKILL))
	c.remove(gone)
	delete(served, "40.0.0.3:80")
	c.run()
	c.settle()
	wait.For(t, "the pins of the Service that is gone are deleted", func() bool { return c.pins(t) == 2 })
	for to, was := range served {
		if who := sole(to); who != was {
			t.Errorf("%s: a client with a pin went from %s to %s when nkp was started again", to, was, who)
		}
	}
}

// pins counts the learned flows.
func (c *cluster) pins(t *testing.T) int {
	t.Helper()
	out, err := c.Ofctl("dump-flows", c.Bridge, "table=10")
	must(t, err)
	return strings.Count(out, "idle_timeout=")
}

// A client without a pin chooses anew, and not always as before. What it opens at once, before the first connection's pin is
// in force, goes to one endpoint nevertheless.
func TestAffinityChoosesAnew(t *testing.T) {
	nightly.Only(t, "the seed of choices changes every 5 s; TestPinsAreBounded has a change")
	const senders = 16
	s4, s6 := service("web4", "40.0.0.1", affinity(3600)), service("web6", "fd00:40::1", affinity(3600))
	c := newCluster(t, testbed.Options{})
	ends := []*testbed.Pod{c.pods[1], c.pods[2], c.remotes[0], c.remotes[1]}
	var v4, v6 []netip.Addr
	for _, p := range ends {
		v4, v6 = append(v4, p.IP4), append(v6, p.IP6)
	}
	c.begin(s4, s6, slice(s4, 8080, ats(v4...)...), slice(s6, 8080, ats(v6...)...))
	seen := map[string]map[string]int{"40.0.0.1:80": {}, "[fd00:40::1]:80": {}}
	for round := range 1 + chance.Trials(1-1/float64(len(ends))) {
		_, err := c.Ofctl("del-flows", c.Bridge, "table=10,ip")
		must(t, err)
		_, err = c.Ofctl("del-flows", c.Bridge, "table=10,ipv6")
		must(t, err)
		c.uncached(t) // else some of the connections may still take the way of the round before
		was := c.seed(t)
		for to, seen := range seen {
			who, errs := c.pods[0].Many(c.ctx, senders, senders, to)
			if len(who) != 1 || len(errs) > 0 {
				t.Fatalf("%s, round %d: %d connections at once reached %v, errors %v", to, round, senders, who, errs)
			}
			for w := range who {
				seen[w]++
			}
		}
		wait.For(t, "another seed", func() bool { return c.seed(t) != was })
	}
	t.Log(seen)
	for to, seen := range seen {
		if len(seen) < 2 {
			t.Errorf("%s: a client always chooses the same endpoint: %v", to, seen)
		}
	}
}
