//go:build linux

package packets

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
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

// 3,000 connections spread evenly, whatever the number of endpoints.
func TestSpread(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	es := c.manyAddresses(t, c.remotes[0], 300)
	counts := []int{2, 3, 10, 100, 300}
	for i, n := range counts {
		s := service(fmt.Sprint("s", n), fmt.Sprintf("40.0.0.%d", i+1))
		c.put(s, slice(s, 8080, es[:n]...))
	}
	c.run()
	c.settle()
	const connections = 3000
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
			float64(c.upcalls(t)-before)/connections)
		// 3,000 independent draws scatter by themselves: allow the layout's tolerance and two standard deviations, with many
		// endpoints six, which one of 300 endpoints passes less than once in a thousand runs.
		scatter := 2 * math.Sqrt(share)
		if n > 10 {
			scatter *= 3
		}
		if float64(most) > 1.25*share+scatter {
			t.Errorf("%d endpoints: one got %d connections, %.2f of its share", n, most, float64(most)/share)
		}
		if float64(least) < 0.75*share-scatter {
			t.Errorf("%d endpoints: one got only %d connections", n, least)
		}
		// So wide a limit for one endpoint says little; their variance says more. Even draws have a variance of one share.
		if n > 10 && variance/share > 2 {
			t.Errorf("%d endpoints: the variance of their connections is %.2f shares; want 2 at most", n, variance/share)
		}
	}
}

// reachable ends the test at once if nobody answers, rather than after thousands of time-outs.
func (c *cluster) reachable(t *testing.T, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
	defer cancel()
	if _, err := c.pods[0].Ask(ctx, "tcp", to); err != nil {
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
	t.Parallel()
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
		if len(errs) > 0 || len(who) < 350 {
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

// A client stays with its endpoint while it comes back within the timeout, over both families; then the pin expires.
// When the endpoint goes away, the client gets another one at once.
func TestAffinity(t *testing.T) {
	t.Parallel()
	const timeout = 2
	s4, s6 := service("web4", "40.0.0.1", affinity(timeout)), service("web6", "fd00:40::1", affinity(timeout))
	c := start(t, s4, s6)
	c.servePods(t)
	all := append(append([]*testbed.Pod{}, c.pods[1:]...), c.remotes...)
	var v4, v6 []netip.Addr
	for _, p := range all {
		v4, v6 = append(v4, p.IP4), append(v6, p.IP6)
	}
	c.put(slice(s4, 8080, ats(v4...)...), slice(s6, 8080, ats(v6...)...))
	c.settle()
	client := c.pods[0]
	for _, tc := range []struct {
		to  string
		svc *v1.Service
		ips []netip.Addr
	}{{"40.0.0.1:80", s4, v4}, {"[fd00:40::1]:80", s6, v6}} {
		who, errs := client.Many(c.ctx, 50, 4, tc.to)
		if len(who) != 1 || len(errs) > 0 {
			t.Fatalf("%s: one client reached %v, errors %v", tc.to, who, errs)
		}
		var pinned string
		for pinned = range who {
		}
		// Each new connection renews the pin.
		for range 4 {
			time.Sleep(timeout * time.Second * 6 / 10)
			c.ask(t, client.Host, "tcp", tc.to, pinned)
		}
		if n := c.pins(t); n == 0 {
			t.Errorf("%s: no pin is learned", tc.to)
		}
		// Its endpoint goes: another answers, and stays.
		var left []netip.Addr
		for i, p := range all {
			if p.Name != pinned {
				left = append(left, tc.ips[i])
			}
		}
		c.put(slice(tc.svc, 8080, ats(left...)...))
		c.settle()
		_, err := c.Appctl("revalidator/wait") // on a busy machine the switch serves a while from cached flows
		must(t, err)
		who, errs = client.Many(c.ctx, 20, 2, tc.to)
		if len(who) != 1 || len(errs) > 0 || who[pinned] > 0 {
			t.Errorf("%s: after %s went, one client reached %v, errors %v", tc.to, pinned, who, errs)
		}
	}
	// A Service that goes while no nkp runs leaves no pin behind.
	long := service("long", "40.0.0.3", affinity(3600))
	c.put(long, slice(long, 8080, at(c.remotes[0].IP4)))
	c.settle()
	c.ask(t, client.Host, "tcp", "40.0.0.3:80", c.remotes[0].Name)
	must(c.t, c.agent.Stop(syscall.SIGKILL))
	c.remove(long)
	c.run()
	c.settle()
	deadline := time.Now().Add(15 * time.Second)
	for c.pins(t) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("pins do not expire")
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// pins counts the learned flows.
func (c *cluster) pins(t *testing.T) int {
	t.Helper()
	out, err := c.Ofctl("dump-flows", c.Bridge, "table=10")
	must(t, err)
	return strings.Count(out, "idle_timeout=")
}

// Affinity is by client: several clients use several endpoints.
func TestAffinityIsPerClient(t *testing.T) {
	t.Parallel()
	s := service("web", "40.0.0.1", affinity(60))
	c := newCluster(t, testbed.Options{})
	es := c.manyAddresses(t, c.remotes[0], 5)
	c.put(s, slice(s, 8080, es...))
	c.run()
	c.settle()
	seen := map[string]bool{}
	for i := range 20 {
		ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)})
		must(t, c.pods[0].AddAddr("eth0", netip.PrefixFrom(ip, 24)))
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		for range 3 {
			a, err := c.pods[0].AskWith(ctx, "tcp", "40.0.0.1:80", testbed.AskOptions{DialOptions: testbed.DialOptions{LocalIP: ip}})
			must(t, err)
			seen[ip.String()+" "+a.Pod] = true
		}
		cancel()
	}
	endpoints := map[string]bool{}
	for k := range seen {
		_, e, _ := strings.Cut(k, " ")
		endpoints[e] = true
	}
	if len(seen) != 20 || len(endpoints) < 3 {
		t.Errorf("20 clients make %d client-endpoint pairs at %d endpoints; want 20 at several", len(seen), len(endpoints))
	}
}

// A client whose pin has expired chooses anew, and not always as before. What it opens at once, before the first connection's pin is
// in force, goes to one endpoint nevertheless.
func TestAffinityChoosesAnew(t *testing.T) {
	t.Parallel()
	const senders = 16
	rounds := 80
	if onKernelDatapath() {
		rounds = 20 // an emulated machine takes a second for each
	}
	s4, s6, cold := service("web4", "40.0.0.1", affinity(1)), service("web6", "fd00:40::1", affinity(1)), service("cold", "40.0.0.2", affinity(600))
	c := newCluster(t, testbed.Options{})
	c.servePods(t)
	ips := []netip.Addr{c.pods[1].IP4, c.pods[2].IP4, c.remotes[0].IP4, c.remotes[1].IP4}
	c.put(s4, s6, cold, slice(s4, 8080, ats(ips...)...), slice(cold, 8080, ats(ips...)...),
		slice(s6, 8080, ats(c.pods[1].IP6, c.pods[2].IP6, c.remotes[0].IP6, c.remotes[1].IP6)...))
	c.run()
	c.settle()
	client := c.pods[0]
	seen := map[string]int{}
	for round := range rounds {
		_, err := c.Ofctl("del-flows", c.Bridge, "table=10,ip")
		must(t, err)
		c.uncached(t) // else some of the connections may still take the way of the round before
		who, errs := client.Many(c.ctx, senders, senders, "40.0.0.2:80")
		if len(who) != 1 || len(errs) > 0 {
			t.Fatalf("round %d: %d connections at once reached %v, errors %v", round, senders, who, errs)
		}
		for w := range who {
			seen[w]++
		}
	}
	t.Logf("%d rounds: %v", rounds, seen)
	for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80"} {
		seen := map[string]int{}
		for round := 0; len(seen) < 2; round++ {
			if round == 12 {
				t.Fatalf("%s: a client always chooses the same endpoint: %v", to, seen)
			}
			who, errs := client.Many(c.ctx, senders, senders, to)
			if len(who) != 1 || len(errs) > 0 {
				t.Fatalf("%s, round %d: %d connections at once reached %v, errors %v", to, round, senders, who, errs)
			}
			for w := range who {
				seen[w]++
			}
			time.Sleep(3 * time.Second)
		}
		t.Logf("%s: %v", to, seen)
	}
}
