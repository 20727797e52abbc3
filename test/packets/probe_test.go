//go:build linux

package packets

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// probed is the answer of `nkp trace --probe -o json`.
type probed struct {
	Verdict string
	Probe   *struct {
		Outcome, By, Endpoint, Summary string
		Milliseconds                   float64
		Fault                          bool
		Steps                          []string
	}
}

// probe sends a probe, once the one before is over, and waits for its end.
func (c *cluster) probe(t *testing.T, proto, from, to string, flags ...string) (r probed, text string, status int) {
	t.Helper()
	wait.NoError(t, "no other probe", func() error {
		out, errOut, code := c.nkp(append([]string{"trace", "-o", "json", "--protocol", proto, "--from", from, "--to", to, "--socket", c.socket(), "--probe"}, flags...)...)
		if strings.Contains(errOut, "another probe is under way") {
			return errString(errOut)
		}
		r, text, status = probed{}, out+errOut, code
		_ = json.Unmarshal([]byte(out), &r)
		return nil
	})
	return r, text, status
}

type errString string

func (e errString) Error() string { return string(e) }

// entriesOf returns the conntrack entries in nkp's zones that name an address.
func (c *cluster) entriesOf(t *testing.T, ip netip.Addr) (list string) {
	t.Helper()
	for _, zone := range []string{"zone=1001", "zone=1002"} {
		out, err := c.Appctl("dpctl/dump-conntrack", zone)
		must(t, err)
		for line := range strings.Lines(out) {
			if strings.Contains(line, "="+ip.String()+",") {
				list += line
			}
		}
	}
	return list
}

// halfOpen returns the connections that a host has accepted, or begun to.
func halfOpen(t *testing.T, c *cluster, h *testbed.Host) string {
	t.Helper()
	out, err := c.Exec(h, "ss", "-Htn", "state", "syn-recv", "state", "established", "state", "close-wait")
	must(t, err)
	return out
}

// What becomes of a probe is what the endpoint's own tap sees, and when it is over nothing of it is left: no conntrack entry, no half of a
// connection, no count, no pin, no flow, and the client has seen nothing.
func TestProbe(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	here, there, client := c.pods[0], c.remotes[0], c.pods[1]
	none := c.remotes[1].IP4.Next().Next().Next().Next() // no pod has it
	var objects []any
	add := func(s *v1.Service, port int32, ips ...netip.Addr) {
		objects = append(objects, s, slice(s, port, ats(ips...)...))
	}
	add(service("web", "40.0.0.1", exposed(30080)), 8080, there.IP4)
	add(service("near", "40.0.0.2"), 8080, here.IP4)
	add(service("shut", "40.0.0.3"), 9999, there.IP4)
	add(service("hole", "40.0.0.4"), 8081, there.IP4)
	add(service("sent-back", "40.0.0.5"), 8082, there.IP4)
	add(service("dead", "40.0.0.6"), 8080, none)
	add(service("empty", "40.0.0.7"), 8080)
	add(service("bound", "40.0.0.8", affinity(600)), 8080, there.IP4, here.IP4)
	add(service("dns", "40.0.0.9", protocol("UDP")), 8080, there.IP4)
	add(service("dns-shut", "40.0.0.10", protocol("UDP")), 9999, there.IP4)
	add(service("dns-hole", "40.0.0.11", protocol("UDP")), 8081, there.IP4)
	add(service("own", "40.0.0.12"), 8080, client.IP4)
	add(service("web6", "fd00:40::1"), 8080, there.IP6)
	add(service("near6", "fd00:40::2"), 8080, here.IP6)
	add(service("shut6", "fd00:40::3"), 9999, there.IP6)
	add(service("hole6", "fd00:40::4"), 8081, there.IP6)
	add(service("empty6", "fd00:40::7"), 8080)
	add(service("dns6", "fd00:40::9", protocol("UDP")), 8080, there.IP6)
	c.servePods(t)
	c.put(objects...)
	c.runWith("--ovs-wait", "10s", "--audit-period", "1s") // while probes run, too
	c.settle()
	_, err := c.Exec(there.Host, "nft", "add table inet hole; add chain inet hole in { type filter hook input priority 0; }; "+
		"add rule inet hole in meta l4proto { tcp, udp } th dport 8081 drop; add rule inet hole in tcp dport 8082 reject with icmpx admin-prohibited")
	must(t, err)
	before := c.status(t)

	type probeCase struct {
		proto, to, outcome, by string
		fault                  bool
		from                   *testbed.Host // nil: client
		endpoint               *testbed.Host
		got, sent              uint64 // packets of the probe's at the endpoint
		says                   string
	}
	cases := []probeCase{
		{"tcp", "40.0.0.1:80", "answered", hostPort(there.IP4, 8080), false, nil, there.Host, 2, 1, "answered by"},
		{"tcp", hostPort(testbed.NodeIP4, 30080), "answered", hostPort(there.IP4, 8080), false, nil, there.Host, 2, 1, "answered by"},
		{"tcp", "40.0.0.4:80", "unanswered", "", true, nil, there.Host, 2, 0, "no answer within 1 s; last seen leaving by"},
		{"tcp", "40.0.0.5:80", "refused", hostPort(there.IP4, 8082), true, nil, there.Host, 1, 1, "refused by"},
		{"tcp", "40.0.0.7:80", "refused", "nkp", false, nil, nil, 0, 0, "refused by nkp"},
		{"tcp", "40.0.0.8:80", "answered", "", false, nil, nil, 0, 0, "answered by"},
		{"udp", "40.0.0.9:80", "answered", hostPort(there.IP4, 8080), false, nil, there.Host, 1, 1, "answered by"},
		{"tcp", "[fd00:40::1]:80", "answered", hostPort(there.IP6, 8080), false, nil, there.Host, 2, 1, "answered by"},
		{"tcp", "[fd00:40::3]:80", "refused", hostPort(there.IP6, 9999), true, nil, there.Host, 1, 1, "refused by"},
		{"tcp", "40.0.0.3:80", "refused", hostPort(there.IP4, 9999), true, c.Node, there.Host, 0, 0, "refused by"},
	}
	if nightly.Is() {
		cases = append(cases, []probeCase{
			{"tcp", "40.0.0.2:80", "answered", hostPort(here.IP4, 8080), false, nil, here.Host, 2, 1, "answered by"},
			{"tcp", "40.0.0.3:80", "refused", hostPort(there.IP4, 9999), true, nil, there.Host, 1, 1, "refused by"},
			{"tcp", "40.0.0.6:80", "unanswered", "", true, nil, nil, 0, 0, "no answer within 1 s; last seen leaving by"},
			{"tcp", "40.0.0.12:80", "answered", hostPort(client.IP4, 8080), false, nil, nil, 0, 0, "answered by"},
			{"udp", "40.0.0.10:80", "refused", hostPort(there.IP4, 9999), true, nil, there.Host, 1, 1, "refused by"},
			{"udp", "40.0.0.11:80", "unknown", "", false, nil, there.Host, 1, 0, "no answer proves nothing"},
			{"tcp", "[fd00:40::2]:80", "answered", hostPort(here.IP6, 8080), false, nil, here.Host, 2, 1, "answered by"},
			{"tcp", "[fd00:40::4]:80", "unanswered", "", true, nil, there.Host, 2, 0, "no answer within 1 s; last seen leaving by"},
			{"tcp", "[fd00:40::7]:80", "refused", "nkp", false, nil, nil, 0, 0, "refused by nkp"},
			{"udp", "[fd00:40::9]:80", "answered", hostPort(there.IP6, 8080), false, nil, there.Host, 1, 1, "answered by"},
			{"tcp", "40.0.0.1:80", "answered", hostPort(there.IP4, 8080), false, c.Node, there.Host, 0, 0, "answered by"},
			{"tcp", "40.0.0.4:80", "unanswered", "", true, c.Node, there.Host, 0, 0, "no answer within 1 s"},
			{"tcp", "40.0.0.7:80", "refused", "nkp", false, c.Node, nil, 0, 0, "refused by nkp"},
			{"tcp", "40.0.0.8:80", "answered", "", false, c.Node, nil, 0, 0, "answered by"},
			{"udp", "40.0.0.9:80", "answered", hostPort(there.IP4, 8080), false, c.Node, there.Host, 0, 0, "answered by"},
			{"tcp", "[fd00:40::1]:80", "answered", hostPort(there.IP6, 8080), false, c.Node, there.Host, 0, 0, "answered by"},
		}...)
	}
	for _, tc := range cases {
		from, name := client.Host, "pod"
		if tc.from != nil {
			from, name = tc.from, "node"
		}
		t.Run(name+" to "+tc.proto+" "+tc.to, func(t *testing.T) {
			like := netip.MustParseAddrPort(tc.to).Addr()
			address := from.IP(like)
			var atEndpoint *tap
			if tc.endpoint != nil {
				atEndpoint = listen(t, tc.endpoint)
			}
			atClient := listen(t, client.Host)
			r, text, status := c.probe(t, tc.proto, address.String(), tc.to)
			p := r.Probe
			if p == nil {
				t.Fatal(text)
			}
			// The kernel forgets a connection at once that a reset refuses, and with it the endpoint.
			forgotten := onKernelDatapath() && tc.proto == "tcp" && strings.HasSuffix(tc.by, ":9999") && p.By == ""
			if p.Outcome != tc.outcome || tc.by != "" && p.By != tc.by && !forgotten || p.Fault != tc.fault || status == 0 == tc.fault || !strings.Contains(p.Summary, tc.says) {
				t.Errorf("status %d: %s", status, text)
			}
			if answered := p.Outcome == "answered" || p.Outcome == "refused"; answered != (p.Milliseconds > 0) {
				t.Errorf("answered after %v ms", p.Milliseconds)
			}
			if onKernelDatapath() && tc.outcome == "unanswered" {
				tc.got = min(tc.got, 1) // the reset, too, has the kernel forget a connection without an answer, before it is translated
			}
			if tc.got > 0 {
				var at traffic // masqueraded, or not
				for _, ip := range []netip.Addr{address, c.Node.IP(like)} {
					at = at.plus(atEndpoint.of(t, ip.String()))
				}
				if at.out.packets != tc.got || at.in.packets != tc.sent {
					t.Errorf("the endpoint got %d packets and sent %d; want %d, %d\n%s", at.out.packets, at.in.packets, tc.got, tc.sent, text)
				}
			}
			if x := atClient.of(t, like.String()); from == client.Host && x != (traffic{}) {
				t.Errorf("the client saw %+v", x)
			}
			for _, h := range []*testbed.Host{here.Host, there.Host} {
				if open := halfOpen(t, c, h); open != "" {
					t.Errorf("%s still has\n%s", h.Name, open)
				}
			}
			if list := c.entriesOf(t, address); list != "" {
				t.Errorf("conntrack still has\n%s", list)
			}
			if err := c.differs(); err != nil {
				t.Error(err)
			}
		})
	}

	t.Run("lost before an endpoint was chosen", func(t *testing.T) {
		const theirs = "table=0,priority=60000,tcp,nw_dst=40.0.0.2"
		_, err := c.Ofctl("add-flow", c.Bridge, theirs+",actions=drop")
		must(t, err)
		r, text, status := c.probe(t, "tcp", client.IP4.String(), "40.0.0.2:80")
		if status != 1 || r.Probe == nil || r.Probe.Summary != "no answer within 1 s; conntrack has no entry of it: it was lost before an endpoint was chosen" {
			t.Errorf("status %d: %s", status, text)
		}
		_, err = c.Ofctl("--strict", "del-flows", c.Bridge, theirs)
		must(t, err)
	})
	t.Run("one at a time", func(t *testing.T) { c.probeAtOnce(t, client.IP4.String(), "40.0.0.4:80") })
	t.Run("not here", func(t *testing.T) {
		for _, tc := range []struct {
			from, to, why string
			status        int
			flags         []string
		}{
			{"192.0.2.9", "40.0.0.1:80", "192.0.2.9 is neither this node nor a pod here", 1, nil},
			{there.IP4.String(), "40.0.0.1:80", "not probed: ", 1, nil},
			{client.IP4.String(), hostPort(there.IP4, 8080), "nothing of nkp's handles this packet", 1, nil},
			{client.IP4.String(), "40.0.0.1:80", "leave out --in", 1, []string{"--in", "pod-12"}},
			{client.IP4.String(), "40.0.0.1:80", "leave out --follow", 2, []string{"--live", "--follow"}},
			{client.IP4.String(), "40.0.0.1:80", "leave out --manifests", 2, []string{"--manifests", c.manifest}},
		} {
			if _, text, status := c.probe(t, "tcp", tc.from, tc.to, tc.flags...); status != tc.status || !strings.Contains(text, tc.why) {
				t.Errorf("%s to %s %s: status %d: %s", tc.from, tc.to, tc.flags, status, text)
			}
		}
	})

	out, err := c.Ofctl("dump-flows", c.Bridge, "cookie=0x6e6b700500000000/0xffffffff00000000")
	must(t, err)
	pins, err := c.Ofctl("dump-flows", c.Bridge, "table=10")
	must(t, err)
	if strings.Contains(out+pins, "cookie=0x6e6b7") {
		t.Errorf("left on the switch:\n%s%s", out, pins)
	}
	c.audited(t)
	after := c.status(t)
	if after.Repairs != before.Repairs || len(after.Warnings) != len(before.Warnings) {
		t.Errorf("repairs %d, warnings %s; before %d, %s", after.Repairs, after.Warnings, before.Repairs, before.Warnings)
	}
	list, err := api.NewCaller(c.socket()).Services(t.Context(), api.ServiceFilter{})
	must(t, err)
	for _, s := range list.Services {
		if k := s.Counters; k == nil || k.Connections != 0 || k.Packets == nil || k.Packets.In+k.Packets.Out != 0 || len(k.Dropped) > 0 {
			text, _ := json.Marshal(k)
			t.Errorf("%s/%s counts %s", s.Namespace, s.Name, text)
		}
	}
}

// probeAtOnce starts two probes again and again until one is told to wait.
func (c *cluster) probeAtOnce(t *testing.T, from, to string) {
	wait.For(t, "one of two probes is told to wait", func() bool {
		told := make(chan bool)
		for range 2 {
			go func() {
				_, errOut, status := c.nkp("trace", "--from", from, "--to", to, "--socket", c.socket(), "--probe")
				told <- status == 1 && strings.Contains(errOut, "another probe is under way, or has ended less than a second ago: wait, then try again")
			}()
		}
		one, other := <-told, <-told
		return one || other
	})
}

// Without a bridge the node itself can probe, by a socket, and leaves nothing either, but for a count; pods cannot.
func TestProbeByTheKernel(t *testing.T) {
	for _, name := range []string{"nftables", "iptables"} {
		t.Run(name, func(t *testing.T) {
			if name == "iptables" {
				nightly.Only(t, "nftables has the same code")
				needsIPTables(t)
			}
			plane := tracePlanes[name]
			c := newCluster(t, plane.options, append(plane.flags, "--service-cidr", serviceCIDRs)...)
			there := c.remotes[0]
			var objects []any
			add := func(s *v1.Service, port int32, ips ...netip.Addr) {
				objects = append(objects, s, slice(s, port, ats(ips...)...))
			}
			add(service("web", "40.0.0.1"), 8080, there.IP4)
			add(service("shut", "40.0.0.2"), 9999, there.IP4)
			add(service("hole", "40.0.0.3"), 8081, there.IP4)
			add(service("empty", "40.0.0.4"), 8080)
			add(service("bound", "40.0.0.5", affinity(600)), 8080, there.IP4)
			add(service("dns", "40.0.0.6", protocol("UDP")), 8080, there.IP4)
			add(service("web6", "fd00:40::1"), 8080, there.IP6)
			c.begin(objects...)
			_, err := c.Exec(there.Host, "nft", "add table inet hole; add chain inet hole in { type filter hook input priority 0; }; add rule inet hole in tcp dport 8081 drop")
			must(t, err)
			for _, tc := range []struct {
				proto, to, outcome, by string
				fault                  bool
			}{
				{"tcp", "40.0.0.1:80", "answered", hostPort(there.IP4, 8080), false},
				{"tcp", "40.0.0.2:80", "refused", "", true},
				{"tcp", "40.0.0.3:80", "unanswered", "", true},
				{"tcp", "40.0.0.4:80", "refused", "nkp", false},
				{"udp", "40.0.0.6:80", "answered", hostPort(there.IP4, 8080), false},
				{"tcp", "[fd00:40::1]:80", "answered", hostPort(there.IP6, 8080), false},
			} {
				from := c.Node.IP(netip.MustParseAddrPort(tc.to).Addr()).String()
				r, text, status := c.probe(t, tc.proto, from, tc.to)
				if p := r.Probe; p == nil || p.Outcome != tc.outcome || tc.by != "" && p.By != tc.by || p.Fault != tc.fault || status == 0 == tc.fault {
					t.Errorf("%s %s: status %d: %s", tc.proto, tc.to, status, text)
				}
				if open := halfOpen(t, c, there.Host); open != "" {
					t.Errorf("%s %s: the endpoint still has\n%s", tc.proto, tc.to, open)
				}
			}
			for from, why := range map[string]string{
				c.pods[1].IP4.String() + " 40.0.0.1:80":            "in mode " + name + " a pod's packet can only be sent inside of the pod's network namespace",
				c.Node.IP(c.pods[1].IP4).String() + " 40.0.0.5:80": "has session affinity",
			} {
				from, to, _ := strings.Cut(from, " ")
				if _, text, status := c.probe(t, "tcp", from, to); status != 1 || !strings.Contains(text, why) {
					t.Errorf("%s to %s: status %d: %s", from, to, status, text)
				}
			}
			_, err = c.Exec(c.Node, "ip", "route", "add", "unreachable", "40.0.0.1/32")
			must(t, err)
			r, text, status := c.probe(t, "tcp", c.Node.IP(there.IP4).String(), "40.0.0.1:80")
			if p := r.Probe; status != 1 || p == nil || p.By != "" || !strings.HasPrefix(p.Summary, "refused on its way (no route to host) after") {
				t.Errorf("without a route: status %d: %s", status, text)
			}
			_, err = c.Exec(c.Node, "ip", "route", "del", "unreachable", "40.0.0.1/32")
			must(t, err)
			must(t, c.differs())
		})
	}
}

// A probe is not sent where it would teach the bridge what is false, or where its answer would not be heard; and an answer that could not
// be heard is not called none. If nkp dies, the switch forgets the probe.
func TestProbeLimits(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC, "--local-delivery", "off", "--cluster-cidr", "192.0.2.0/24") // pods are outside, too
	there, client := c.remotes[0], c.pods[1]
	c.servePods(t)
	var objects []any
	for _, s := range []*v1.Service{service("web", "40.0.0.1"), service("spread", "40.0.0.2", consistent("20.0.0.1"))} {
		objects = append(objects, s, slice(s, 8080, at(there.IP4)))
	}
	hole := service("hole", "40.0.0.3")
	c.put(append(objects, hole, slice(hole, 8081, at(there.IP4)))...)
	c.runWith("--ovs-wait", "10s")
	c.settle()
	_, err := c.Exec(there.Host, "nft", "add table inet hole; add chain inet hole in { type filter hook input priority 0; }; add rule inet hole in tcp dport 8081 drop")
	must(t, err)
	from := client.IP4.String()
	refused := func(to, why string) {
		t.Helper()
		if r, text, status := c.probe(t, "tcp", from, to); status != 1 || r.Probe != nil || !strings.Contains(text, why) {
			t.Errorf("probe of %s: status %d: %s", to, status, text)
		}
	}

	refused("20.0.0.1:80", "annotation "+k8s.AnnotationConsistent)

	_, err = c.Vsctl("remove", "Interface", client.Interface, "external_ids", "attached-mac")
	must(t, err)
	wait.NoError(t, "nkp has no MAC of the pod", func() error {
		_, err := c.Appctl("fdb/flush", c.Bridge)
		must(t, err)
		if _, text, status := c.probe(t, "tcp", from, "40.0.0.1:80"); status != 1 || !strings.Contains(text, "the MAC of the pod at port "+client.Interface+" is not known") {
			return errString(text)
		}
		return nil
	})
	fdb, err := c.Appctl("fdb/show", c.Bridge)
	must(t, err)
	for line := range strings.Lines(fdb) {
		if f := strings.Fields(line); f[0] == strconv.Itoa(int(client.OFPort)) && f[2] != client.MAC {
			t.Errorf("the bridge has learned a MAC that no pod has: %s", line)
		}
	}
	c.ask(t, client.Host, "tcp", hostPort(c.pods[2].IP4, 8080), c.pods[2].Name) // the bridge learns
	const limit = "not passed: the flows of others in table 0 that decide on the answer"
	r, text, status := c.probe(t, "tcp", from, "40.0.0.1:80")
	if status != 0 || r.Probe == nil || r.Probe.Outcome != "answered" || strings.Contains(text, limit) {
		t.Errorf("probe with a MAC that was learned: status %d: %s", status, text)
	}
	c.addFlows(t, "cookie=0x77,table=0,priority=2,actions=NORMAL", "cookie=0x77,table=0,priority=50,tcp,nw_dst="+from+",tp_src=80,actions=drop")
	wait.NoError(t, "a probe tells of others' flows", func() error {
		if _, text, status = c.probe(t, "tcp", from, "40.0.0.1:80"); status != 0 || !strings.Contains(text, limit) {
			return errString(text)
		}
		return nil
	})

	begin := func() chan string {
		c.flush()
		ended := make(chan string, 1)
		go func() {
			_, text, _ := c.probe(t, "tcp", from, "40.0.0.3:80")
			ended <- text
		}()
		wait.For(t, "the probe is under way", func() bool { return c.entriesOf(t, client.IP4) != "" })
		return ended
	}
	probes := func() string {
		out, err := c.Ofctl("dump-flows", c.Bridge, "cookie=0x6e6b700500000000/0xffffffff00000000")
		must(t, err)
		if strings.Contains(out, "cookie=0x6e6b7") {
			return out
		}
		return ""
	}

	ended := begin()
	c.agent.Kill()
	if probes() == "" {
		t.Error("nkp was killed, and its probe's flows are not there")
	}
	<-ended
	c.runWith("--ovs-wait", "10s")
	wait.For(t, "the switch has deleted the probe's flows", func() bool { return probes() == "" })
	c.settle()

	ended = begin()
	c.KillVswitchd()
	if text := <-ended; !strings.Contains(text, "not probed: the connection to the switch broke") {
		t.Errorf("ovs-vswitchd died under the probe: %s", text)
	}
}
