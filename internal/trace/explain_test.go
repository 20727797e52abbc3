package trace

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
)

// load returns what is known of the cluster in testdata.
func load(t *testing.T, change ...func(*k8s.Options, *Cluster)) Cluster {
	t.Helper()
	opts := k8s.Options{
		NodeName: "node-1",
		DetectLocal: k8s.DetectLocal{Mode: k8s.DetectByClusterCIDR,
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00:a::/48")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("40.0.0.0/24"), netip.MustParsePrefix("fd00:40::/112")},
	}
	c := Cluster{LocalhostNodePorts: true}
	for _, f := range change {
		f(&opts, &c)
	}
	return follow(t, "testdata/cluster.yaml", opts, c)
}

// follow adds to a Cluster the state of the objects in a file.
func follow(t *testing.T, file string, opts k8s.Options, c Cluster) Cluster {
	t.Helper()
	m := manifest.Load(file)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	c.Tracker = k8s.NewTracker(opts)
	c.Tracker.Apply(m.Objects)
	c.Model, _ = c.Tracker.Flush()
	return c
}

// ask explains one packet; to may begin with a protocol ("udp/…").
func ask(t *testing.T, c Cluster, from, to string) *Result {
	t.Helper()
	proto, dst, ok := strings.Cut(to, "/")
	if !ok {
		proto, dst = "", to
	}
	src, err1 := ParseSource(from)
	at, err2 := ParseDestination(dst)
	p, err3 := ParseProtocol(proto)
	q := Question{From: src, To: at, Protocol: p}
	for _, err := range []error{err1, err2, err3, q.Validate()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return Explain(c, q)
}

// short returns what a result decides in one line.
func short(r *Result) string {
	return fmt.Sprintf("%s %s %s %s %s", r.Verdict, cut(r.Service), cut(string(r.Frontend)), strings.Join(r.Endpoints, ","), r.Masquerade)
}

func cut(s string) string {
	if s == "" {
		return "-"
	}
	return strings.TrimPrefix(s, "default/")
}

// The clients of the cases: two pods of this node (the second is an endpoint), one of the other node, the nodes, and others.
const (
	client   = "10.0.0.5"
	endpoint = "10.0.0.11"
	remote   = "10.0.1.5"
	node     = "172.16.0.2"
	stranger = "203.0.113.9"
)

const (
	here  = "10.0.0.11:8080"
	there = "10.0.1.11:8080"
	all   = here + "," + there
)

// Every kind of frontend, from every kind of client, under every policy: semantics 9-21.
func TestExplain(t *testing.T) {
	c := load(t)
	for _, tc := range []struct{ from, to, want, says string }{
		// Policy Cluster.
		{client, "40.0.0.1:80", "deliver both:http ClusterIP " + all + " never", "a pod of this node"},
		{endpoint, "40.0.0.1:80", "deliver both:http ClusterIP " + all + " hairpin", "unless 10.0.0.11 itself is picked"},
		{remote, "40.0.0.1:80", "deliver both:http ClusterIP " + all + " never", "a pod of node node-2"},
		{node, "40.0.0.1:80", "deliver both:http ClusterIP " + all + " always", "this node, node-1"},
		{stranger, "40.0.0.1:80", "deliver both:http ClusterIP " + all + " always", "in no pod range"},
		{"172.16.0.3", "40.0.0.1:80", "deliver both:http ClusterIP " + all + " always", "node node-2, which counts as outside"},
		{client, "172.16.0.2:30001", "deliver both:http NodePort " + all + " always", "NodePort 30001"},
		{node, "172.16.0.2:30001", "deliver both:http NodePort " + all + " always", ""},
		{stranger, "172.16.0.2:30001", "deliver both:http NodePort " + all + " always", "externalTrafficPolicy Cluster"},
		{"127.0.0.1", "127.0.0.1:30001", "deliver both:http NodePort " + all + " always", ""},
		{endpoint, "172.16.0.2:30001", "deliver both:http NodePort " + all + " always", ""},
		{client, "30.0.0.1:80", "deliver both:http ExternalIP " + all + " always", "Service default/younger wants the same"},
		{stranger, "30.0.0.1:80", "deliver both:http ExternalIP " + all + " always", "10.0.1.12:8080 on node-2: not ready"},
		{client, "20.0.0.1:80", "deliver both:http LoadBalancer " + all + " always", ""},
		{stranger, "20.0.0.1:80", "deliver both:http LoadBalancer " + all + " always", ""},
		{client, "udp/40.0.0.1:53", "deliver both:dns ClusterIP 10.0.0.11:5353,10.0.1.11:5353 never", ""},
		{stranger, "udp/172.16.0.2:30002", "deliver both:dns NodePort 10.0.0.11:5353,10.0.1.11:5353 always", ""},
		{client, "sctp/40.0.0.1:99", "deliver both:sctp ClusterIP 10.0.0.11:9999,10.0.1.11:9999 never", ""},
		{"fd00:a::5", "[fd00:40::1]:80", "deliver both:http ClusterIP [fd00:a::11]:8080 never", "delivered to [fd00:a::11]:8080"},
		{"fd00:a::11", "[fd00:40::1]:80", "deliver both:http ClusterIP [fd00:a::11]:8080 hairpin", ""},
		{"2001:db8::1", "[fd00:ac::2]:30001", "deliver both:http NodePort [fd00:a::11]:8080 always", ""},
		{"2001:db8::1", "[fd00:20::1]:80", "deliver both:http LoadBalancer [fd00:a::11]:8080 always", ""},
		// Policies Local, with endpoints here.
		{client, "40.0.0.2:80", "deliver local ClusterIP " + here + " never", "internalTrafficPolicy Local"},
		{endpoint, "40.0.0.2:80", "deliver local ClusterIP " + here + " hairpin", "not a candidate: 10.0.1.11:8080: on node-2"},
		{node, "40.0.0.2:80", "deliver local ClusterIP " + here + " always", ""},
		{stranger, "172.16.0.2:30003", "deliver local NodePort " + here + " never", "externalTrafficPolicy Local: endpoints on this node only"},
		{stranger, "30.0.0.2:80", "deliver local ExternalIP " + here + " never", ""},
		{stranger, "20.0.0.2:80", "deliver local LoadBalancer " + here + " never", ""},
		{client, "20.0.0.2:80", "deliver local LoadBalancer " + all + " never", "a pod is served by endpoints on any node"},
		{remote, "172.16.0.2:30003", "deliver local NodePort " + all + " never", ""},
		{endpoint, "172.16.0.2:30003", "deliver local NodePort " + all + " hairpin", ""},
		{node, "20.0.0.2:80", "deliver local LoadBalancer " + all + " always", "the node itself is served by endpoints on any node"},
		// Policies Local, with endpoints elsewhere.
		{client, "40.0.0.3:80", "drop elsewhere ClusterIP  never", "no endpoint in force is on this node, but 1 is on others"},
		{stranger, "172.16.0.2:30004", "drop elsewhere NodePort  never", "on node-2"},
		{stranger, "20.0.0.3:80", "drop elsewhere LoadBalancer  never", ""},
		{client, "20.0.0.3:80", "deliver elsewhere LoadBalancer " + there + " never", ""},
		{node, "172.16.0.2:30004", "deliver elsewhere NodePort " + there + " always", ""},
		// No endpoints at all.
		{client, "40.0.0.4:80", "reject empty ClusterIP  never", "no IPv4 EndpointSlice names it"},
		{stranger, "172.16.0.2:30005", "reject empty NodePort  never", "refused"},
		{stranger, "20.0.0.4:80", "reject empty LoadBalancer  never", ""},
		{client, "40.0.0.10:80", "reject misnamed:http ClusterIP  never", "its EndpointSlices have ports web/TCP, not http/TCP"},
		{client, "40.0.0.11:80", "reject selectless ClusterIP  never", "does its selector match any pod?"},
		{client, "40.0.0.12:80", "reject unready ClusterIP  never", "none of its endpoints can serve"},
		// Source ranges: of the load balancer's address alone.
		{client, "20.0.0.5:80", "deliver ranges LoadBalancer " + there + " always", "loadBalancerSourceRanges 10.0.0.0/16, 172.16.0.2/32 allow 10.0.0.5"},
		{node, "20.0.0.5:80", "deliver ranges LoadBalancer " + there + " always", ""},
		{"20.0.0.5", "20.0.0.5:80", "deliver ranges LoadBalancer " + there + " always", "and with it the load balancer"},
		{stranger, "20.0.0.5:80", "drop ranges LoadBalancer  never", "loadBalancerSourceRanges allow only 10.0.0.0/16, 172.16.0.2/32"},
		{stranger, "172.16.0.2:30006", "deliver ranges NodePort " + there + " always", ""},
		{stranger, "40.0.0.5:80", "deliver ranges ClusterIP " + there + " always", ""},
		// Affinity, topology, termination.
		{client, "40.0.0.6:80", "deliver affine ClusterIP " + here + " never", "within the last 600 s"},
		{client, "172.16.0.2:30007", "deliver affine NodePort " + here + " always", "for zone b (topology hints)"},
		{client, "40.0.0.9:80", "deliver ending ClusterIP " + there + " never", "terminating, but still serving"},
		// What is no frontend.
		{client, "40.0.0.1:81", "reject - -  never", "which serves 53/UDP (dns), 80/TCP (http), 99/SCTP (sctp) and no other port"},
		{client, "40.0.0.1:8080", "reject - -  never", "8080 is the port of its endpoints (targetPort)"},
		{stranger, "udp/40.0.0.2:80", "reject - -  never", "which serves 80/TCP"},
		{client, "40.0.0.200:80", "drop - -  never", "in the Service range 40.0.0.0/24"},
		{client, "20.0.0.1:81", "untouched - -  never", "an address of Service default/both"},
		{client, "20.0.0.6:80", "untouched - -  never", "its ingress has ipMode Proxy"},
		{client, "41.0.0.8:80", "untouched - -  never", "another proxy serves it"},
		{client, here, "untouched - -  never", "an endpoint of Service default/affine, addressed directly"},
		{client, "10.0.0.77:1", "untouched - -  never", "a pod's address"},
		{client, "8.8.8.8:53", "untouched - -  never", "no Service has this address"},
		{stranger, "172.16.0.2:30042", "untouched - -  never", "no Service has this NodePort"},
		{stranger, "172.16.0.2:30999", "untouched - -  never", "the health check node port of Service default/local"},
		{client, "172.16.0.3:30001", "untouched - -  never", "node node-2 itself serves it"},
		{client, "172.16.0.3:22", "untouched - -  never", "an address of node node-2"},
		{stranger, "127.0.0.1:30001", "untouched - -  never", "for anyone but the node itself"},
		{"::1", "[::1]:30001", "untouched - -  never", "not served at loopback addresses of IPv6"},
	} {
		r := ask(t, c, tc.from, tc.to)
		if got := short(r); got != tc.want {
			t.Errorf("%s to %s: %s, want %s\n  %s", tc.from, tc.to, got, tc.want, strings.Join(r.Steps, "\n  "))
		}
		if text := strings.Join(r.Steps, "\n  "); !strings.Contains(text, tc.says) {
			t.Errorf("%s to %s: no %q in\n  %s", tc.from, tc.to, tc.says, text)
		}
	}
}

// Settings change the answer: each is tried with a packet that it decides about.
func TestExplainSettings(t *testing.T) {
	noDetector := func(o *k8s.Options, _ *Cluster) { o.DetectLocal = k8s.DetectLocal{} }
	permissive := func(_ *k8s.Options, c *Cluster) { c.Permissive = true }
	loopback6 := func(o *k8s.Options, _ *Cluster) { o.UserspaceLoopback6 = true }
	for name, tc := range map[string]struct {
		change     func(*k8s.Options, *Cluster)
		from, to   string
		want, says string
	}{
		"no detector, ClusterIP": {noDetector, stranger, "40.0.0.1:80", "deliver both:http ClusterIP " + all + " never", "without --cluster-cidr"},
		"no detector, Local":     {noDetector, client, "20.0.0.3:80", "drop elsewhere LoadBalancer  never", "endpoints on this node only"},
		"no detector, node":      {noDetector, node, "20.0.0.3:80", "deliver elsewhere LoadBalancer " + there + " always", ""},
		"masquerade all": {func(_ *k8s.Options, c *Cluster) { c.MasqueradeAll = true }, client, "40.0.0.1:80",
			"deliver both:http ClusterIP " + all + " always", "--masquerade-all"},
		"no localhost": {func(_ *k8s.Options, c *Cluster) { c.LocalhostNodePorts = false }, "127.0.0.1", "127.0.0.1:30001",
			"untouched - -  never", "--iptables-localhost-nodeports is off"},
		"loopback of IPv6":                 {loopback6, "::1", "[::1]:30001", "deliver both:http NodePort [fd00:a::11]:8080 always", "nkp itself accepts the connection"},
		"loopback of IPv6, from elsewhere": {loopback6, "fd00:a::5", "[::1]:30001", "untouched - -  never", "not served at loopback addresses of IPv6, but for TCP from the node"},
		"loopback of IPv6, taken": {func(o *k8s.Options, c *Cluster) {
			loopback6(o, c)
			c.Unheard = map[k8s.PortName]string{{ServiceName: k8s.ServiceName{Namespace: "default", Name: "both"}, Port: "http", Protocol: "TCP", Family: k8s.IPv6}: "it is taken"}
		}, "::1", "[::1]:30001", "untouched both:http NodePort  never", "left alone: it is taken"},
		"NodePort addresses, elsewhere": {func(o *k8s.Options, _ *Cluster) {
			o.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
			o.LocalAddresses = []netip.Addr{netip.MustParseAddr("192.168.7.7")}
		}, stranger, "172.16.0.2:30001", "untouched - -  never", "served only at 192.168.7.7 (--nodeport-addresses), not at 172.16.0.2"},
		"NodePort addresses, there": {func(o *k8s.Options, _ *Cluster) {
			o.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
			o.LocalAddresses = []netip.Addr{netip.MustParseAddr("192.168.7.7")}
		}, stranger, "192.168.7.7:30001", "deliver both:http NodePort " + all + " always", "--nodeport-addresses"},
		"unknown ranges": {func(o *k8s.Options, _ *Cluster) { o.ServiceCIDRs = nil }, client, "40.0.0.200:80",
			"untouched - -  never", "no Service has this address"},
		"unknown ranges, port": {func(o *k8s.Options, _ *Cluster) { o.ServiceCIDRs = nil }, client, "40.0.0.1:81", "reject - -  never", ""},
		"interface detector": {func(o *k8s.Options, _ *Cluster) {
			o.DetectLocal = k8s.DetectLocal{Mode: k8s.DetectByInterfacePrefix, Interface: "veth"}
		}, client, "20.0.0.3:80", "deliver elsewhere LoadBalancer " + there + " never", "a pod of this node"},
		"interface detector, other node's pod": {func(o *k8s.Options, _ *Cluster) {
			o.DetectLocal = k8s.DetectLocal{Mode: k8s.DetectByInterfacePrefix, Interface: "veth"}
		}, remote, "20.0.0.3:80", "drop elsewhere LoadBalancer  never", "not a pod of this node"},
		"externalIPs off": {func(o *k8s.Options, _ *Cluster) { o.IgnoreExternalIPs = true }, stranger, "30.0.0.1:80",
			"untouched - -  never", "AllowServiceExternalIPs"},
		"nobody serves the node": {func(_ *k8s.Options, c *Cluster) { c.HostUnserved = "--host-traffic off" }, node, "40.0.0.1:80",
			"untouched - -  never", "--host-traffic off"},
		"nobody serves the node itself": {func(_ *k8s.Options, c *Cluster) { c.OwnUnserved = "--host-traffic ovs" }, node, "172.16.0.2:30001",
			"untouched - -  never", "--host-traffic ovs"},
		"HNS, no endpoint":   {permissive, client, "40.0.0.4:80", "untouched empty ClusterIP  never", "neither refused nor dropped"},
		"HNS, none here":     {permissive, stranger, "172.16.0.2:30004", "untouched elsewhere NodePort  never", "the packet goes on as any other"},
		"HNS, source ranges": {permissive, stranger, "20.0.0.5:80", "deliver ranges LoadBalancer " + there + " always", "are not enforced"},
		"HNS, another port":  {permissive, client, "40.0.0.1:81", "untouched - -  never", "cannot refuse packets"},
		"HNS, no Service":    {permissive, client, "40.0.0.200:80", "untouched - -  never", "no Service has this address"},
		"but pods": {func(_ *k8s.Options, c *Cluster) { c.HostUnserved, c.OwnUnserved = "x", "y" }, client, "172.16.0.2:30001",
			"deliver both:http NodePort " + all + " always", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := ask(t, load(t, tc.change), tc.from, tc.to)
			if got := short(r); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if text := strings.Join(r.Steps, "\n  "); !strings.Contains(text, tc.says) {
				t.Errorf("no %q in\n  %s", tc.says, text)
			}
		})
	}
}

// --in decides who is a pod where the detector goes by interface.
func TestExplainIn(t *testing.T) {
	c := load(t, func(o *k8s.Options, c *Cluster) {
		o.DetectLocal, c.Uplink = k8s.DetectLocal{Mode: k8s.DetectByBridge, Interface: "br-int"}, "eth0"
	})
	for in, want := range map[string]k8s.ClientKind{"pod-1": k8s.Pod, "eth0": k8s.Outside, "LOCAL": k8s.ThisNode} {
		q := Question{From: netip.MustParseAddrPort("198.51.100.1:0"), To: netip.MustParseAddrPort("20.0.0.3:80"), Protocol: "TCP", In: in}
		if r := Explain(c, q); r.Source != want {
			t.Errorf("--in %s: %v, want %v", in, r.Source, want)
		}
	}
}

// Where weights decide, the answer says so with each candidate's share; not where they are equal, with session affinity, or on Windows.
func TestExplainWeights(t *testing.T) {
	original, err := os.ReadFile("testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		weights, spec string
		windows       bool
		says          string
		share         bool
	}{
		{"", "", false, "one of the 2, at random", false},
		{"10.0.0.11=7,10.0.1.11=3", "", false, "one of the 2, by weight", true},
		{"10.0.0.11=7,10.0.1.11=7", "", false, "one of the 2, at random", false},
		{"10.0.0.11=7,10.0.1.11=3", "sessionAffinity: ClientIP", false, "at random unless the client has one", false},
		{"10.0.0.11=7,10.0.1.11=3", "", true, "one of the 2, at random", false},
	} {
		text := strings.Replace(string(original), "{name: both, ", "{name: both, annotations: {nkp-proxy.github.io/weights: '"+tc.weights+"'}, ", 1)
		text = strings.Replace(text, "    type: LoadBalancer\n", "    type: LoadBalancer\n    "+tc.spec+"\n", 1)
		file := filepath.Join(t.TempDir(), "cluster.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := follow(t, file, k8s.Options{NodeName: "node-1"}, Cluster{Permissive: tc.windows})
		steps := strings.Join(ask(t, c, "10.0.0.12", "40.0.0.1:80").Steps, "\n")
		if !strings.Contains(steps, tc.says) || strings.Contains(steps, "10.0.0.11:8080 on this node, weight 7 (70 %)") != tc.share ||
			strings.Contains(steps, "on node-2, weight 3 (30 %)") != tc.share || strings.Contains(steps, "%)") != tc.share {
			t.Errorf("%+v:\n%s", tc, steps)
		}
	}
}

// A long list of endpoints is cut in the steps, never in the answer.
func TestExplainMany(t *testing.T) {
	c := load(t)
	name := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "both"}, Port: "http", Protocol: "TCP", Family: k8s.IPv4}
	port := *c.Model.Ports[name]
	states := c.Tracker.EndpointStates(name)
	e := &explanation{Cluster: c}
	for i := range 60 {
		s := states[0]
		s.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8080)
		states = append(states, s)
	}
	e.listEndpoints(states, 0)
	if n := len(e.Steps); n != maxListed+2 { // the last line tells of the rest; one is not ready
		t.Errorf("%d steps for %d endpoints of %s:\n%s", n, len(states), port.Name, strings.Join(e.Steps, "\n"))
	}
}
