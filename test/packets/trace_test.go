//go:build linux

package packets

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// traced is the answer of `nkp trace -o json`.
type traced struct {
	Verdict, Service, Frontend, Masquerade string
	Endpoints, Steps                       []string
	Packet                                 struct{ From, To, Protocol string }
	Live                                   *installed
	Reply                                  *struct {
		Verdict string
		Steps   []string
		Live    *installed
	}
}

// installed is the part of it about what is installed.
type installed struct {
	Agrees             bool
	Verdict            string
	Differences, Steps []string
	Unknown            []string
}

// trace runs `nkp trace -o json` on the node.
func (c *cluster) trace(t *testing.T, proto, from, to string, flags ...string) (traced, int) {
	t.Helper()
	args := append([]string{"trace", "-o", "json", "--protocol", proto, "--from", from, "--to", to, "--socket", c.socket()}, flags...)
	out, errOut, status := c.nkp(args...)
	var r traced
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("nkp %s: status %d, %v: %s%s", strings.Join(args, " "), status, err, out, errOut)
	}
	return r, status
}

// loadBalancer makes a Service a load balancer with an address.
func loadBalancer(ip string, change ...func(*v1.Service)) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
		for _, f := range change {
			f(s)
		}
	}
}

func externalLocal(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *v1.Service) {
	p := v1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &p
}

func proxyMode(s *v1.Service) {
	p := v1.LoadBalancerIPModeProxy
	s.Status.LoadBalancer.Ingress[0].IPMode = &p
}

// hasIPTables reports whether the test machine has iptables.
func hasIPTables() bool { return !onKernelDatapath() }

// needsIPTables skips where the test machine has none.
func needsIPTables(t *testing.T) {
	t.Helper()
	if !hasIPTables() {
		t.Skip("the virtual machine of make test-kernel has no iptables; make test runs it")
	}
}

// tracePlanes are the data planes that a packet can be followed through.
var tracePlanes = map[string]struct {
	options testbed.Options
	flags   []string
}{
	"ovs":      {testbed.Options{}, []string{"--gateway-mac", testbed.GatewayMAC}},
	"iptables": {testbed.Options{Plane: testbed.Linux}, []string{"--mode", "iptables"}},
	"nftables": {testbed.Options{Plane: testbed.Linux}, []string{"--mode", "nftables"}},
}

// onTracePlanes runs a test on each of them, in the gate on that of most nodes.
func onTracePlanes(t *testing.T, test func(t *testing.T, plane string, c *cluster), flags ...string) {
	for name, plane := range tracePlanes {
		t.Run(name, func(t *testing.T) {
			if plane.options.Plane == testbed.Linux {
				nightly.Only(t, "the plane of most nodes is in the gate")
				needsIPTables(t)
			}
			all := slices.Concat(plane.flags, []string{"--service-cidr", serviceCIDRs}, flags)
			test(t, name, newCluster(t, plane.options, all...))
		})
	}
}

// Where the node's address is beside the bridge, trace looks where the packet goes: at the bridge for pods, which keep their
// addresses, and in iptables for the node and what comes in at its own network card.
func TestTraceNodeBeside(t *testing.T) {
	nightly.Only(t, "TestTrace has the node on the bridge")
	needsIPTables(t)
	for _, plane := range []string{"iptables", "nftables"} {
		t.Run(plane, func(t *testing.T) { traceNodeBeside(t, plane) })
	}
}

func traceNodeBeside(t *testing.T, plane string) {
	c := newCluster(t, testbed.Options{NodeOutside: true}, "--service-cidr", serviceCIDRs, "--gateway-mac", testbed.GatewayMAC, "--host-traffic", plane)
	web, away := service("web", "40.0.0.1", exposed(30080)), service("away", "40.0.0.2", exposed(30081), externalLocal)
	here, there := c.pods[0].IP4, c.remotes[0].IP4
	c.begin(web, slice(web, 8080, ats(here, there)...), away, slice(away, 8080, at(there)))
	for _, tc := range []struct {
		from                         *testbed.Host
		to, want, masquerade, bridge string
	}{
		{c.pods[1].Host, "40.0.0.1:80", "deliver", "never", "bridge br-int"},
		{c.pods[1].Host, "172.16.0.2:30080", "deliver", "never", "bridge br-int"},
		{c.pods[0].Host, "172.16.0.2:30080", "deliver", "hairpin", "bridge br-int"},
		{c.Node, "40.0.0.1:80", "deliver", "always", plane},
		{c.Node, "172.16.0.2:30081", "deliver", "always", plane},
		{c.External, "172.16.0.2:30080", "deliver", "always", plane},
		{c.External, "172.16.0.2:30081", "drop", "never", plane},
	} {
		t.Run(tc.from.Name+" to "+tc.to, func(t *testing.T) {
			r, status := c.trace(t, "tcp", tc.from.IP(here).String(), tc.to, "--live")
			if r.Verdict != tc.want || r.Masquerade != tc.masquerade {
				t.Errorf("verdict %s, masquerade %s; want %s, %s\n%s", r.Verdict, r.Masquerade, tc.want, tc.masquerade, strings.Join(r.Steps, "\n"))
			}
			if r.Live == nil || !r.Live.Agrees || status != 0 || !strings.HasPrefix(r.Live.Steps[0], tc.bridge) {
				t.Errorf("status %d, installed: %+v", status, r.Live)
			}
			c.happens(t, tc.from, "tcp", tc.to, r)
		})
	}
}

// What the node sends to itself never crosses the bridge: without nftables or iptables beside it nothing serves that, and trace says so.
func TestTraceGap(t *testing.T) {
	nightly.Only(t, "a rare combination")
	c := newCluster(t, testbed.Options{}, "--host-traffic", "ovs")
	web := service("web", "40.0.0.1", exposed(30080))
	c.put(web, slice(web, 8080, at(c.remotes[0].IP4)))
	c.run()
	c.settle()
	r, status := c.trace(t, "tcp", "172.16.0.2", "172.16.0.2:30080", "--live")
	if status != 0 || r.Verdict != "untouched" || !r.Live.Agrees || !strings.Contains(strings.Join(r.Steps, "\n"), "--host-traffic ovs") {
		t.Errorf("status %d, %+v, %+v", status, r, r.Live)
	}
	refused(t, c, c.Node, "172.16.0.2:30080")
	here, status := c.traceHere(t, "172.16.0.2", "172.16.0.2:30080")
	if status != 0 || here.Verdict != "untouched" || !here.Live.Agrees {
		t.Errorf("without the agent: status %d, %+v, %+v", status, here, here.Live)
	}
	if r, status := c.trace(t, "tcp", "172.16.0.2", "40.0.0.1:80", "--live"); status != 0 || r.Verdict != "deliver" || !r.Live.Agrees {
		t.Errorf("to a cluster IP: status %d, %+v, %+v", status, r, r.Live)
	}
}

// --in names the port by which the packet comes, by name or number; also where nkp lives in other tables than usual.
func TestTraceIn(t *testing.T) {
	nightly.Only(t, "a rare combination")
	c := newCluster(t, testbed.Options{}, "--table-base", "40", "--cookie-prefix", "0x123456", "--group-base", "0x10000000", "--zone-dnat", "77")
	_, err := c.Ofctl("add-flow", c.Bridge, "table=0,priority=1,actions=resubmit(,40)")
	must(t, err)
	web := service("web", "40.0.0.1")
	c.put(web, slice(web, 8080, at(c.remotes[0].IP4)))
	c.run()
	c.settle()
	for in, want := range map[string]string{"pod-12": "by port 12", "12": "by port 12", testbed.UplinkName: "by port 1:", "LOCAL": "by port LOCAL", "": "by port 11"} {
		r, status := c.trace(t, "tcp", c.pods[0].IP4.String(), "40.0.0.1:80", "--live", "--in", in)
		if in == "LOCAL" { // the switch, too, takes this for the node
			if r.Live == nil || r.Masquerade != "always" {
				t.Errorf("--in LOCAL: %+v", r)
			}
		}
		if r.Live == nil || !r.Live.Agrees || status != 0 || !strings.Contains(r.Live.Steps[0], want) {
			t.Errorf("--in %q: status %d, %+v", in, status, r.Live)
		}
	}
	if r, status := c.trace(t, "tcp", c.pods[0].IP4.String(), "40.0.0.1:81", "--live"); status != 0 || r.Verdict != "reject" || !r.Live.Agrees {
		t.Errorf("an unserved port: status %d, %+v, %+v", status, r, r.Live)
	}
	_, errOut, status := c.nkp("trace", "--socket", c.socket(), "--from", "10.0.0.11", "--to", "40.0.0.1:80", "--live", "--in", "none")
	if status != 1 || !strings.Contains(errOut, "has no port none") {
		t.Errorf("a port that does not exist: status %d, %s", status, errOut)
	}
}

// What trace says of a packet is what happens to it, in both data planes: the answer comes from one of the endpoints that
// it names, with or without the client's address, or it is refused, or there is none. What is installed agrees.
func TestTrace(t *testing.T) {
	onTracePlanes(t, traceEverything)
}

// A client without a pin gets another endpoint a few seconds later, so that no verdict says drop where the one that is chosen now
// lacks its flow.
func TestTraceAffinityChoosesAnew(t *testing.T) {
	nightly.Only(t, "a rare combination")
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	web := service("web", "40.0.0.1", exposed(30080), func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP })
	c.put(web, slice(web, 8080, ats(c.pods[0].IP4, c.remotes[0].IP4)...))
	c.run()
	c.settle()
	must(t, c.agent.Stop(syscall.SIGTERM)) // it would repair what is about to be broken
	flows, err := c.Ofctl("dump-flows", c.Bridge, "table=11")
	must(t, err)
	broken := regexp.MustCompile(`reg2=0x[0-9a-f]+,?[^\n]*nat\(dst=` + regexp.QuoteMeta(c.pods[0].IP4.String())).FindString(flows)
	reg2 := regexp.MustCompile(`reg2=0x[0-9a-f]+`).FindString(broken)
	if reg2 == "" {
		t.Fatalf("no flow translates to %s:\n%s", c.pods[0].IP4, flows)
	}
	_, err = c.Ofctl("del-flows", c.Bridge, "table=11,"+reg2)
	must(t, err)
	verdicts := map[string]int{}
	for i := range 16 {
		r, status := c.traceHere(t, fmt.Sprint("192.0.2.", i+1), hostPort(testbed.NodeIP4, 30080))
		if r.Live == nil || status != 1 {
			t.Fatalf("status %d, %+v", status, r)
		}
		verdicts[r.Live.Verdict]++
		if r.Live.Verdict != "uncertain" {
			t.Errorf("%+v", r.Live)
		}
	}
	t.Log(verdicts)
}

// traceServices returns the Services of TestTrace.
func traceServices(c *cluster) (objects []any) {
	here, there := c.pods[0], c.remotes[0]
	add := func(s *v1.Service, pods ...*testbed.Pod) {
		objects = append(objects, s)
		var ips []netip.Addr
		for _, p := range pods {
			ip := p.IP4
			if s.Spec.IPFamilies[0] == v1.IPv6Protocol {
				ip = p.IP6
			}
			ips = append(ips, ip)
		}
		objects = append(objects, slice(s, 8080, ats(ips...)...))
	}
	add(service("web", "40.0.0.1", exposed(30080)), here, there)
	add(service("udp", "40.0.0.2", protocol(v1.ProtocolUDP), exposed(30081)), here, there)
	add(service("six", "fd00:40::1", exposed(30082)), here, there)
	add(service("empty", "40.0.0.3", exposed(30083)))
	add(service("itself", "40.0.0.4"), here)
	add(service("affine", "40.0.0.5", func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }), here, there)
	add(service("inside-there", "40.0.0.6", internalLocal), there)
	add(service("inside-both", "40.0.0.7", internalLocal), here, there)
	add(service("outside-there", "40.0.0.8", loadBalancer("20.0.0.1", externalLocal)), there)
	add(service("outside-both", "40.0.0.9", loadBalancer("20.0.0.2", externalLocal), exposedToo(30084)), here, there)
	add(service("ranges", "40.0.0.10", loadBalancer("20.0.0.3", func(s *v1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/16"}
	})), here, there)
	add(service("proxied", "40.0.0.11", loadBalancer("20.0.0.4", proxyMode)), here)
	add(service("external", "40.0.0.12", func(s *v1.Service) { s.Spec.ExternalIPs = []string{"20.0.0.5"} }), there)
	wide := service("wide", "40.0.0.13")
	ips := []netip.Addr{here.IP4}
	for i := range 200 {
		ips = append(ips, netip.AddrFrom4([4]byte{10, 0, 1, byte(20 + i)}))
	}
	return append(objects, wide, slice(wide, 8080, ats(ips...)...))
}

// exposedToo adds a NodePort to a load balancer.
func exposedToo(port int32) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.Ports[0].NodePort = port }
}

func traceEverything(t *testing.T, plane string, c *cluster) {
	c.begin(traceServices(c)...)
	client, stranger, twin := c.pods[1].Host, c.External, c.pods[0].Host
	node := c.Node
	for _, tc := range []struct {
		from       *testbed.Host
		to         string // TCP, or protocol/…
		want       string // verdict
		masquerade string
		quiet      bool // no packet is sent: not every endpoint exists
	}{
		{from: client, to: "40.0.0.1:80", want: "deliver", masquerade: "never"},
		{from: twin, to: "40.0.0.1:80", want: "deliver", masquerade: "hairpin"},
		{from: node, to: "40.0.0.1:80", want: "deliver", masquerade: "always"},
		{from: stranger, to: "40.0.0.1:80", want: "deliver", masquerade: "always"},
		{from: client, to: "172.16.0.2:30080", want: "deliver", masquerade: "always"},
		{from: stranger, to: "172.16.0.2:30080", want: "deliver", masquerade: "always"},
		{from: node, to: "172.16.0.2:30080", want: "deliver", masquerade: "always"},
		{from: client, to: "udp/40.0.0.2:80", want: "deliver", masquerade: "never"},
		{from: stranger, to: "udp/172.16.0.2:30081", want: "deliver", masquerade: "always"},
		{from: client, to: "[fd00:40::1]:80", want: "deliver", masquerade: "never"},
		{from: stranger, to: "[fd00:ac::2]:30082", want: "deliver", masquerade: "always"},
		{from: client, to: "40.0.0.3:80", want: "reject", masquerade: "never"},
		{from: stranger, to: "172.16.0.2:30083", want: "reject", masquerade: "never"},
		{from: client, to: "40.0.0.4:80", want: "deliver", masquerade: "never"},
		{from: twin, to: "40.0.0.4:80", want: "deliver", masquerade: "hairpin"},
		{from: client, to: "40.0.0.5:80", want: "deliver", masquerade: "never"},
		{from: client, to: "40.0.0.6:80", want: "drop", masquerade: "never"},
		{from: client, to: "40.0.0.7:80", want: "deliver", masquerade: "never"},
		{from: stranger, to: "20.0.0.1:80", want: "drop", masquerade: "never"},
		{from: client, to: "20.0.0.1:80", want: "deliver", masquerade: "never"},
		{from: stranger, to: "20.0.0.2:80", want: "deliver", masquerade: "never"},
		{from: client, to: "20.0.0.2:80", want: "deliver", masquerade: "never"},
		{from: stranger, to: "172.16.0.2:30084", want: "deliver", masquerade: "never"},
		{from: node, to: "172.16.0.2:30084", want: "deliver", masquerade: "always"},
		{from: client, to: "20.0.0.3:80", want: "deliver", masquerade: "always"},
		{from: stranger, to: "20.0.0.3:80", want: "drop", masquerade: "never"},
		{from: client, to: "20.0.0.4:80", want: "untouched", masquerade: "never", quiet: true},
		{from: stranger, to: "20.0.0.5:80", want: "deliver", masquerade: "always"},
		{from: client, to: "40.0.0.13:80", want: "deliver", masquerade: "never", quiet: true},
		{from: client, to: "40.0.0.1:81", want: "reject", masquerade: "never"},
		{from: client, to: "40.0.0.99:80", want: "drop", masquerade: "never"},
		{from: client, to: "10.0.1.11:8080", want: "untouched", masquerade: "never"},
	} {
		proto, to, ok := strings.Cut(tc.to, "/")
		if !ok {
			proto, to = "tcp", tc.to
		}
		t.Run(fmt.Sprintf("%s to %s %s", tc.from.Name, proto, to), func(t *testing.T) {
			from := tc.from.IP(netip.MustParseAddrPort(to).Addr())
			if tc.from == node && strings.HasPrefix(to, from.String()+":") {
				needsIPTables(t)
			}
			r, status := c.trace(t, proto, from.String(), to, "--live", "--reply")
			if r.Verdict != tc.want || r.Masquerade != tc.masquerade {
				t.Errorf("verdict %s, masquerade %s; want %s, %s\n%s", r.Verdict, r.Masquerade, tc.want, tc.masquerade, strings.Join(r.Steps, "\n"))
			}
			if r.Live == nil || !r.Live.Agrees || status != 0 {
				t.Errorf("status %d, installed: %+v", status, r.Live)
			}
			reply := r.Verdict
			if reply == "reject" {
				reply = "deliver" // the refusal
			}
			if r.Reply == nil || r.Reply.Verdict != reply || r.Reply.Live == nil || r.Reply.Live.Verdict != reply {
				t.Errorf("the answer: %+v, want %s", r.Reply, reply)
			}
			if !tc.quiet {
				c.happens(t, tc.from, proto, to, r)
			}
		})
	}
	if plane == "nftables" { // session affinity remembers the client by now
		r, _ := c.trace(t, "tcp", client.IP4.String(), "40.0.0.5:80", "--live")
		if r.Live == nil || !strings.Contains(strings.Join(r.Live.Steps, "\n"), "until it expires: 10.0.") {
			t.Errorf("a client that has asked: %+v", r.Live)
		}
	}
}

// happens sends the packet and compares what becomes of it with what trace said.
func (c *cluster) happens(t *testing.T, from *testbed.Host, proto, to string, r traced) {
	t.Helper()
	if r.Verdict == "drop" {
		c.unanswered(t, from, proto, to, c.direct(t, from))
		return
	}
	a, err := from.Ask(c.ctx, proto, to)
	if r.Verdict == "reject" {
		if !errors.Is(err, testbed.ErrRefused) {
			t.Errorf("trace says refused; in fact: %v, %v", a, err)
		}
		return
	}
	if err != nil {
		t.Errorf("trace says %s; in fact: %v\n%s\n%s", r.Verdict, err, strings.Join(r.Steps, "\n"), c.explain(proto, to))
		return
	}
	if r.Verdict == "untouched" {
		return
	}
	ip := netip.MustParseAddrPort(to).Addr()
	i := slices.IndexFunc(append(slices.Clone(c.pods), c.remotes...), func(p *testbed.Pod) bool { return p.Name == a.Pod })
	pod := append(slices.Clone(c.pods), c.remotes...)[max(i, 0)]
	if i < 0 || !slices.Contains(r.Endpoints, hostPort(pod.IP(ip), 8080)) {
		t.Errorf("answered by %s, which is none of %v", a.Pod, r.Endpoints)
	}
	kept := a.Client.Addr() == from.IP(ip)
	switch {
	case from == c.Node: // the node's own address either way
	case r.Masquerade == "always" && kept, r.Masquerade == "never" && !kept,
		r.Masquerade == "hairpin" && kept == (pod.Name == from.Name):
		t.Errorf("masquerade is %s, but %s saw %s", r.Masquerade, a.Pod, a.Client)
	}
}

// A flow or a rule that somebody deleted shows: trace says that what is installed does not agree, and ends with status 1.
// Without an agent it works from the manifests alone.
func TestTraceDisagrees(t *testing.T) {
	onTracePlanes(t, func(t *testing.T, name string, c *cluster) {
		web, gone := service("web", "40.0.0.1"), service("gone", "40.0.0.2")
		here, there, far := c.pods[0].IP4, c.remotes[0].IP4, c.remotes[1].IP4
		c.put(web, slice(web, 8080, ats(here, there, far)...), gone, slice(gone, 8080, at(there)))
		c.run()
		c.settle()
		must(c.t, c.agent.Stop(15)) // it would repair what is about to be broken
		switch name {
		case "ovs":
			_, err := c.Ofctl("del-flows", c.Bridge, "table=1,tcp,nw_dst=40.0.0.2,tp_dst=80,ct_state=-est-rel-inv")
			must(t, err)
		case "iptables":
			c.breakRules(t)
		case "nftables":
			_, err := c.Exec(c.Node, "nft", "delete element ip nkp services { 40.0.0.2 . tcp . 80 }")
			must(t, err)
		}
		client := c.pods[1].IP4.String()
		r, status := c.traceHere(t, client, "40.0.0.2:80")
		if status != 1 || r.Live == nil || r.Live.Agrees || r.Verdict != "deliver" {
			t.Errorf("a deleted flow or rule: status %d, %s, %+v", status, r.Verdict, r.Live)
		} else if d := strings.Join(r.Live.Differences, "\n"); !strings.Contains(d, "say") || !strings.Contains(d, "the model deliver") {
			t.Errorf("the differences are %s", d)
		}
		if r, status := c.traceHere(t, client, "40.0.0.1:80"); status != 0 || r.Live == nil || !r.Live.Agrees {
			t.Errorf("what is whole: status %d, %+v", status, r.Live)
		}
		// The manifests move on, what is installed does not.
		c.put(slice(web, 8080, ats(there, far)...))
		r, status = c.traceHere(t, client, "40.0.0.1:80")
		if status != 1 || !strings.Contains(fmt.Sprint(r.Live), "still have the endpoint "+hostPort(here, 8080)) && !strings.Contains(fmt.Sprint(r.Live), "still has the endpoint "+hostPort(here, 8080)) {
			t.Errorf("an endpoint that is gone: status %d, %+v", status, r.Live)
		}
		c.put(slice(web, 8080, ats(here, there, far, c.pods[2].IP4)...))
		if r, status = c.traceHere(t, client, "40.0.0.1:80"); status != 1 || !strings.Contains(fmt.Sprint(r.Live), "the endpoint "+hostPort(c.pods[2].IP4, 8080)) {
			t.Errorf("an endpoint that is missing: status %d, %+v", status, r.Live)
		}
		out, _, status := c.nkp(append([]string{"trace", "--live", "--from", client, "--to", "40.0.0.2:80"}, c.common()...)...)
		if status != 1 || !strings.Contains(out, "what is installed does not agree: ") {
			t.Errorf("as text: status %d\n%s", status, out)
		}
	})
}

// breakRules deletes the rule of Service gone.
func (c *cluster) breakRules(t *testing.T) {
	t.Helper()
	out, err := c.Exec(c.Node, "sh", "-c", `iptables-save -t nat | grep -e '-d 40.0.0.2/32' | sed -n 's/^-A KUBE-SERVICES/iptables -t nat -D KUBE-SERVICES/p' | sh -e`)
	if err != nil {
		t.Fatal(out, err)
	}
}

// traceHere explains a packet from the manifests and compares with what is installed, without the agent.
func (c *cluster) traceHere(t *testing.T, from, to string, flags ...string) (traced, int) {
	t.Helper()
	return c.trace(t, "tcp", from, to, append(append([]string{"--live"}, flags...), c.common()...)...)
}

// A connection that exists already is found, and where it goes: also if its endpoint is not in force any more.
func TestTraceExistingConnection(t *testing.T) {
	onTracePlanes(t, func(t *testing.T, _ string, c *cluster) {
		web := service("web", "40.0.0.1", exposed(30080))
		c.servePods(t)
		here, there := c.pods[0], c.remotes[0]
		c.put(web, slice(web, 8080, at(there.IP4)))
		c.run()
		c.settle()
		client := c.pods[1]
		held, err := client.Hold(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
		must(t, err)
		defer held.Close()
		outside, err := c.External.Hold(c.ctx, "172.16.0.2:30080", testbed.DialOptions{})
		must(t, err)
		defer outside.Close()
		c.put(slice(web, 8080, at(here.IP4)))
		c.settle()
		says := func(from, to string, wants ...string) {
			t.Helper()
			r, status := c.trace(t, "tcp", from, to, "--live")
			if status != 0 || r.Live == nil {
				t.Fatalf("status %d, %+v", status, r)
			}
			text := strings.Join(r.Live.Steps, "\n")
			for _, w := range wants {
				if !strings.Contains(text, w) {
					t.Errorf("%s to %s: no %q in\n%s", from, to, w, text)
				}
			}
		}
		endpoint := "goes to " + hostPort(there.IP4, 8080) + " since it was opened"
		says(client.IP4.String(), "40.0.0.1:80", "an existing connection", endpoint, "new connections do not go there any more")
		says(c.External.IP(client.IP4).String(), "172.16.0.2:30080", endpoint, "masqueraded as 172.16.0.2")
		if r, _ := c.trace(t, "tcp", client.IP4.String(), "40.0.0.1:80", "--live", "--reply"); r.Reply == nil || r.Reply.Live == nil ||
			!strings.Contains(strings.Join(r.Reply.Live.Steps, "\n"), "an answer from "+hostPort(there.IP4, 8080)+" to "+client.IP4.String()+" becomes one from 40.0.0.1:80") {
			t.Errorf("the answer: %+v", r.Reply)
		}
		if r, _ := c.trace(t, "tcp", client.IP4.String()+":1", "40.0.0.1:80", "--live"); strings.Contains(fmt.Sprint(r.Live), "existing") {
			t.Errorf("a connection from another port is taken for this one: %+v", r.Live)
		}
	})
}

// Offline, trace needs no switch, no agent and no privilege; wrong usage is told in one line.
func TestTraceOffline(t *testing.T) {
	c := offline(t)
	base := []string{"trace", "--manifests", filepath.Join(samples, "guestbook.yaml"), "--hostname-override", "haofan-test-1", "--cluster-cidr", "172.18.0.0/16"}
	with := func(flags ...string) []string { return append(slices.Clone(base), flags...) }

	out := c.local(with("-o", "json", "--from", "172.18.1.22:40000", "--to", "172.16.92.224:80")...)
	want := traced{Verdict: "deliver", Service: "default/frontend", Frontend: "ClusterIP", Masquerade: "hairpin",
		Endpoints: []string{"172.18.0.20:80", "172.18.1.22:80", "172.18.1.23:80"}}
	var got traced
	must(t, json.Unmarshal([]byte(out), &got))
	if len(got.Steps) == 0 || strings.Contains(out, `"live"`) {
		t.Errorf("steps, and nothing live: %s", out)
	}
	want.Packet.From, want.Packet.To, want.Packet.Protocol = "172.18.1.22:40000", "172.16.92.224:80", "TCP"
	got.Steps = nil
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if out := c.local(with("--from", "9.9.9.9", "--to", "192.168.3.233:30784")...); !strings.Contains(out, "NodePort 30784 of Service default/frontend") || !strings.HasSuffix(out, "\nverdict: deliver\n") {
		t.Error(out)
	}
	for _, tc := range []struct {
		flags  []string
		status int
		want   string
	}{
		{nil, 2, "--from"},
		{[]string{"--from", "1.2.3.4"}, 2, "--to"},
		{[]string{"--from", "x", "--to", "1.2.3.4:80"}, 2, "10.0.0.5:40000"},
		{[]string{"--from", "1.2.3.4", "--to", "1.2.3.4"}, 2, "10.96.0.1:443"},
		{[]string{"--from", "1.2.3.4", "--to", "[fd00::1]:80"}, 2, "one is IPv4, the other IPv6"},
		{[]string{"--from", "1.2.3.4", "--to", "1.2.3.4:80", "--protocol", "icmp"}, 2, "tcp, udp or sctp"},
		{[]string{"--from", "1.2.3.4", "--to", "1.2.3.4:80", "-o", "xml"}, 2, "text, json or yaml"},
		{[]string{"--manifests", samples, "--from", "1.2.3.4", "--to", "1.2.3.4:80", "--live", "--mode", "ovs", "--ovsdb", "unix:/nonexistent/db.sock"}, 1, "/nonexistent/db.sock"},
	} {
		stdout, stderr, status := c.try(with(tc.flags...)...)
		if status != tc.status || !strings.Contains(stderr, tc.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("nkp trace %s: status %d, stdout %q, stderr %q", strings.Join(tc.flags, " "), status, stdout, stderr)
		}
	}
	_, stderr, status := c.try("trace", "--from", "1.2.3.4", "--to", "1.2.3.4:80", "--socket", "/nonexistent")
	if status != 1 || !strings.Contains(stderr, "--manifests") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("without an agent: status %d, %q", status, stderr)
	}
}
