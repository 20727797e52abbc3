package windows

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Others' load balancers are left alone; those that kube-proxy left are taken over, and go with their Services.
func TestOthersObjects(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	backend := b.pod("100.244.206.80")
	foreign := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"192.0.2.1"}, "HostComputeEndpoints": []any{backend},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 1}}})
	remote := b.hns.AddEndpoint(hnsfake.Object{"HostComputeNetwork": b.network, "Flags": 1, "MacAddress": "00-15-5d-01-02-03",
		"IpConfigurations": []any{map[string]any{"IpAddress": "100.244.1.200"}}})
	// kube-proxy's: for a Service that is still there, with an endpoint that is not.
	gone := b.hns.AddEndpoint(hnsfake.Object{"HostComputeNetwork": b.network, "Flags": 1, "MacAddress": "02-11-64-f4-01-63",
		"IpConfigurations": []any{map[string]any{"IpAddress": "100.244.1.99"}}})
	left := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.99.0.1"}, "HostComputeEndpoints": []any{gone}, "SourceVIP": sourceVIP,
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80}}})
	b.simple("web", "10.99.0.1", "100.244.1.200")
	b.good()
	if l := b.mustHave("10.99.0.1", 80, "100.244.1.200"); l.ID != left || l.HostComputeEndpoints[0] != remote {
		t.Errorf("the load balancer was not taken over: %+v", l)
	}
	if s := b.plane.Detail(); s.Objects.Foreign != 1 || s.Objects.LoadBalancers != 1 {
		t.Errorf("status counts %+v", s.Objects)
	}
	b.tracker.DeleteService("default", "web")
	b.good()
	if !has(b, foreign) || has(b, left) {
		t.Errorf("HNS has\n%s", b.hns.Dump())
	}
	if !strings.Contains(b.hns.Dump(), "100.244.1.200") || strings.Contains(b.hns.Dump(), "100.244.1.99") {
		t.Errorf("the endpoint of someone else is gone, or kube-proxy's stays\n%s", b.hns.Dump())
	}
}

// A frontend that a load balancer of someone else holds together with others is not taken by force, and that is said.
func TestFrontendHeldWithOthers(t *testing.T) {
	var told []dataplane.Refusal
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.Hooks.Refused = func(r dataplane.Refusal) { told = append(told, r) }
	})
	backend := b.pod("100.244.206.80")
	foreign := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.99.0.1", "10.99.0.7"}, "HostComputeEndpoints": []any{backend},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 80}}})
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.simple("other", "10.99.0.2", "100.244.1.2")
	if n := hnsfake.Count(b.sync(), "HcnCreateLoadBalancer"); n != 1 {
		t.Errorf("%d load balancers were created, want the other's only", n)
	}
	s := b.plane.Detail()
	if len(s.Failures) != 1 || !strings.Contains(s.Failures[0].Error, foreign) || s.Failures[0].Service != "default/web" || !has(b, foreign) {
		t.Errorf("failures %+v", s.Failures)
	}
	b.mustHave("10.99.0.2", 80, "100.244.1.2")
	b.sync()
	if len(told) != 1 || told[0].Port.String() != "default/web" || !strings.Contains(told[0].Reason, foreign) { // an Event
		t.Errorf("told %+v, want it once", told)
	}
	if n := strings.Count(b.log.String(), foreign); n != 1 || !strings.Contains(b.log.String(), "service=default/web") {
		t.Errorf("the log names it %d times, want once:\n%s", n, b.log.String())
	}
	if s, err := b.plane.Status(t.Context()); err != nil || s.InStep || s.Why != "HNS does not take 1 object" || len(s.Refusals) != 1 {
		t.Errorf("%v, status %+v", err, s)
	}
	b.hns.DropLoadBalancer(foreign)
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.1")
}

// DSR was asked for and this HNS has none: log and status report it; kube-proxy would not start.
func TestDSRWithoutSupport(t *testing.T) {
	for v, want := range map[hns.Version]int{{Major: 9, Minor: 2}: 1, newest: 0} {
		b := newBed(t, hns.NetworkL2Bridge, v, func(o *Options) { o.EnableDSR = true })
		b.simple("web", "10.96.0.1", "10.244.2.7")
		b.good()
		b.good()
		if n := strings.Count(b.log.String(), "--enable-dsr has no effect"); n != want {
			t.Errorf("HNS %s: the log says so %d times, want %d", v, n, want)
		}
		s, err := b.plane.Status(t.Context())
		if err != nil || len(s.Warnings) != want || want > 0 && !strings.Contains(s.Warnings[0], "HNS 9.2 has no DSR (HNS 10.2 and later have it)") {
			t.Errorf("HNS %s: %v, warnings %q", v, err, s.Warnings)
		}
	}
}

// Cleanup removes what nkp made and nothing else, also after a crash.
func TestCleanup(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	backend := b.pod("100.244.206.80")
	b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"192.0.2.1"}, "HostComputeEndpoints": []any{backend},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 1}}})
	before := b.hns.Dump()
	b.many(10, 3)
	b.good()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := Cleanup(ended, b.opts); n != 0 || err == nil {
		t.Errorf("a cleanup that was called off removed %d: %v", n, err)
	}
	b.hns.Inject(hnsfake.Fault{Func: "HcnDeleteEndpoint", Times: 1, Code: hns.CodeFail, Text: "busy"})
	if _, err := Cleanup(t.Context(), b.opts); err == nil {
		t.Error("cleanup hides that an endpoint could not be deleted")
	}
	removed, err := Cleanup(t.Context(), b.opts)
	if err != nil || removed != 1 {
		t.Errorf("second cleanup removed %d: %v", removed, err)
	}
	if got := b.hns.Dump(); got != before {
		t.Errorf("after cleanup HNS has\n%swant\n%s", got, before)
	}
	if _, err := os.Stat(b.opts.StateFile); !os.IsNotExist(err) {
		t.Errorf("the state file stays: %v", err)
	}
}

// A state file that cannot be written stops creations: they would leak.
func TestStateFile(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		file := filepath.Join(filepath.Dir(o.StateFile), "file")
		must(t, os.WriteFile(file, nil, 0o600))
		o.StateFile = filepath.Join(file, "hns.json") // below a file
	})
	b.simple("web", "10.99.0.1", "100.244.1.1")
	if n := writes(b.sync()); n != 0 {
		t.Errorf("%d changes without a state file", n)
	}
	if s := b.plane.Detail(); !strings.Contains(s.Error, "state file") {
		t.Errorf("status %q", s.Error)
	}
}

// Diff tells what would be done, in words, and does nothing.
func TestDiff(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.good()
	if text, err := b.plane.Diff(t.Context()); err != nil || text != "" {
		t.Errorf("diff of what was just made: %q, %v", text, err)
	}
	b.simple("web", "10.99.0.1", "100.244.1.2")
	b.simple("new", "10.99.0.2", "100.244.1.3")
	b.flush()
	b.hns.Calls()
	text, err := b.plane.Diff(t.Context())
	if err != nil || writes(b.hns.Calls()) != 0 {
		t.Fatalf("diff changed something: %v", err)
	}
	for _, want := range []string{"create endpoint 100.244.1.2 (backend)", "modify load balancer 10.99.0.1:80/TCP (ClusterIP, id ", "of default/web: endpoints +1 -1",
		"create load balancer 10.99.0.2:80/TCP (ClusterIP) of default/new", "delete endpoint 100.244.1.1"} {
		if !strings.Contains(text, want) {
			t.Errorf("diff does not say %q:\n%s", want, text)
		}
	}
}

// What a Service asks for and HNS cannot do is said once, and again when it comes back.
func TestUnsupportedIsReportedOnce(t *testing.T) {
	var told []string
	b := newBed(t, hns.NetworkL2Bridge, hns.Version{Major: 9, Minor: 2}, func(o *Options) {
		o.Hooks.Unsupported = func(n dataplane.Notice) { told = append(told, n.Port.ServiceName.String()+": "+n.Text) }
	})
	spec := v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00::1"}, Ports: tcp(80, 8080),
		SessionAffinity: v1.ServiceAffinityClientIP, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal, LoadBalancerSourceRanges: []string{"192.0.2.0/24"}}
	b.pod("10.244.1.5")
	b.service("web", spec, ingress("198.51.100.1"))
	b.slice("web", tcp(0, 8080), "10.244.1.5@"+nodeName)
	for range 3 {
		b.good()
	}
	slices.Sort(told)
	affinity := "default/web: session affinity is not kept: HNS 9.2 has no SessionAffinity (HNS 12.0"
	lost := slices.IndexFunc(told, func(s string) bool { return strings.HasPrefix(s, affinity) })
	if len(told) != 4 || len(slices.Compact(slices.Clone(told))) != 4 || lost < 0 {
		t.Errorf("told %q, want each of 4 once", told)
	}
}

// What HNS cannot do is named in status, for each Service, by nkp's own part and by the part that all data planes have.
func TestUnsupportedByService(t *testing.T) {
	type want map[string]string // Service -> reason
	for _, c := range []struct {
		network string
		version hns.Version
		make    func(*bed)
		want    want
	}{
		{hns.NetworkL2Bridge, newest, func(b *bed) {
			b.tracker = k8s.NewTracker(k8s.Options{NodeName: nodeName, NodePortAddresses: []netip.Prefix{netip.MustParsePrefix(nodeIP + "/32")}})
			b.tracker.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: nodeIP}}}}, k8s.Origin{})
			sctp := []v1.ServicePort{{Port: 90, Protocol: v1.ProtocolSCTP, TargetPort: intstr.FromInt32(90)}}
			b.service("sctp", v1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: sctp})
			b.slice("sctp", sctp, "10.244.2.7")
			b.service("six", v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "fd00:99::1", Ports: tcp(80, 8080)}, ingress("2001:db8::1"))
			b.slice("six", tcp(0, 8080), "fd00:244::1")
			b.service("ranges", v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.2", Ports: tcp(80, 8080), LoadBalancerSourceRanges: []string{"192.0.2.0/24"}},
				ingress("198.51.100.1"))
			b.slice("ranges", tcp(0, 8080), "10.244.2.7")
			ports := tcp(80, 8080)
			ports[0].NodePort = 30080
			b.service("node-port", v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: "10.96.0.3", Ports: ports})
			b.slice("node-port", tcp(0, 8080), "10.244.2.7")
			var seconds int32 = 60
			b.service("timeout", v1.ServiceSpec{ClusterIP: "10.96.0.4", Ports: tcp(80, 8080), SessionAffinity: v1.ServiceAffinityClientIP,
				SessionAffinityConfig: &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}})
			b.slice("timeout", tcp(0, 8080), "10.244.2.7")
			b.service("two-ports", v1.ServiceSpec{ClusterIP: "10.96.0.5", Ports: tcp(80, 8080)})
			b.slice("two-ports", tcp(0, 8080), "10.244.2.7")
			b.tracker.SetEndpointSlice(otherPort("two-ports", "10.244.2.8", 9090), k8s.Origin{})
		}, want{"sctp": "SCTP: Kubernetes does not support it on Windows", "six": "health checks that arrive at 2001:db8::1 are not forwarded",
			"ranges": "loadBalancerSourceRanges are not enforced", "node-port": "NodePorts cannot be restricted to some of the node's addresses",
			"timeout": "the session affinity timeout of 60 s is not observed", "two-ports": `port "": its endpoints listen on 2 different ports; HNS serves one`}},
		{hns.NetworkOverlay, newest, func(b *bed) {
			b.simple("six", "fd00:99::1", "fd00:244::1")
		}, want{"six": "IPv6 is not served: overlay networks on Windows have IPv4 only"}},
		{hns.NetworkL2Bridge, hns.Version{Major: 9, Minor: 2}, func(b *bed) {
			b.pod("10.244.1.5")
			b.simple("six", "fd00:99::1", "fd00:244::1")
			b.service("affinity", v1.ServiceSpec{ClusterIP: "10.96.0.4", Ports: tcp(80, 8080), SessionAffinity: v1.ServiceAffinityClientIP})
			b.slice("affinity", tcp(0, 8080), "10.244.2.7")
			b.service("local", v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.6", Ports: tcp(80, 8080),
				ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal}, ingress("198.51.100.1"))
			b.slice("local", tcp(0, 8080), "10.244.1.5@"+nodeName)
			b.service("preserve", v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", Ports: tcp(80, 8080)}, ingress("198.51.100.2"),
				func(s *v1.Service) { s.Annotations = map[string]string{"preserve-destination": "true"} })
			b.slice("preserve", tcp(0, 8080), "10.244.1.5@"+nodeName)
		}, want{"six": "IPv6 is not served: HNS 9.2 has no IPv6DualStack", "affinity": "session affinity is not kept: HNS 9.2 has no SessionAffinity",
			"local":    "externalTrafficPolicy Local keeps traffic on this node, but not the client's address: HNS 9.2 has no DSR",
			"preserve": "preserve-destination is not observed: HNS 9.2 has no DSR"}},
	} {
		b := newBed(t, c.network, c.version, func(o *Options) { o.ForwardHealthCheckVIP, o.HealthzPort = true, 10256 })
		b.hns.AddPod(b.network, "", "cbr0", "00-15-5d-00-00-02", "10.244.1.2")
		c.make(b)
		b.good()
		s, err := b.plane.Status(t.Context())
		got := b.plane.Detail().Unsupported
		if err != nil || len(got) != len(c.want) || len(s.Notices) != len(c.want) {
			t.Fatalf("%v: status names %+v and %+v, want %v", err, got, s.Notices, c.want)
		}
		for i, u := range got {
			reason, ok := c.want[strings.TrimPrefix(u.Service, "default/")]
			if !ok || !strings.HasPrefix(u.Reason, reason) || s.Notices[i].Port.ServiceName.String() != u.Service || s.Notices[i].Text != "not supported by HNS: "+u.Reason {
				t.Errorf("status names %+v and %+v, want %q", u, s.Notices[i], reason)
			}
		}
		if c.version == newest && c.network == hns.NetworkL2Bridge {
			b.mustHave("10.96.0.1", 90, "10.244.2.7") // SCTP, as in kube-proxy
		}
	}
}

// otherPort returns a second EndpointSlice of a Service, whose endpoint listens on another port.
func otherPort(service, address string, port int32) *discoveryv1.EndpointSlice {
	name, protocol, ready, node := "", v1.ProtocolTCP, true, "winw2"
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service + "-2", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
}

// Two load balancers of one frontend, which HNS is said to bring about: one of them stays, and it is right.
func TestTwoLoadBalancersOfOneFrontend(t *testing.T) {
	for _, v := range []hns.Version{newest, {Major: 13, Minor: 2}} {
		b := newBed(t, hns.NetworkOverlay, v)
		backend := b.pod("100.244.206.80")
		for range 2 {
			b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.99.0.1"}, "HostComputeEndpoints": []any{backend},
				"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 80}}})
		}
		b.simple("web", "10.99.0.1", "100.244.1.1")
		b.good()
		b.mustHave("10.99.0.1", 80, "100.244.1.1")
		if b.count() != 1 {
			t.Errorf("HNS %s: %d load balancers", v, b.count())
		}
	}
}

// Cleanup finds what an agent made when it died before it could write down the id.
func TestCleanupAfterACrashWhileCreating(t *testing.T) {
	for _, fn := range []string{"HcnCreateLoadBalancer", "HcnCreateEndpoint"} {
		b := newBed(t, hns.NetworkOverlay, newest)
		before := b.hns.Dump()
		b.hns.Inject(hnsfake.Fault{Func: fn, Times: 1, Code: hns.CodeFail, Text: "the pipe is being closed", Applied: true})
		b.simple("web", "10.99.0.1", "100.244.1.1")
		state := b.stateDuring(t)
		if !strings.Contains(state, "10.99.0.1") {
			t.Fatalf("%s: the state file does not say what was about to be created:\n%s", fn, state)
		}
		if _, err := Cleanup(t.Context(), b.opts); err != nil {
			t.Fatal(err)
		}
		if got := b.hns.Dump(); got != before {
			t.Errorf("%s: after cleanup HNS has\n%s", fn, got)
		}
	}
}

// stateDuring syncs, and puts the state file back to what it was right before the first object was created.
func (b *bed) stateDuring(t *testing.T) (state string) {
	t.Helper()
	inner := b.plane.opts.Open
	b.plane.opts.Open = func() (hns.Host, error) {
		host, err := inner()
		return &spy{Host: host, creating: func() {
			if text, err := os.ReadFile(b.opts.StateFile); err == nil && state == "" {
				state = string(text)
			}
		}}, err
	}
	b.sync()
	must(t, os.WriteFile(b.opts.StateFile, []byte(state), 0o600))
	return state
}

// spy is an HNS that tells before it creates something.
type spy struct {
	hns.Host
	creating func()
}

func (s *spy) CreateEndpoint(e *hns.Endpoint) (*hns.Endpoint, error) {
	s.creating()
	return s.Host.CreateEndpoint(e)
}

func (s *spy) CreateLoadBalancer(l *hns.LoadBalancer) (*hns.LoadBalancer, error) {
	s.creating()
	return s.Host.CreateLoadBalancer(l)
}

// kube-proxy's load balancers of Services that are gone stay, until nkp is told to take over: diff lists them, and only those go that
// were there when nkp started and have kube-proxy's form.
func TestTakeOver(t *testing.T) {
	for _, networkType := range []string{hns.NetworkOverlay, hns.NetworkL2Bridge} {
		b := newBed(t, networkType, newest)
		b.many(3, 2)
		b.service("np", v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: "10.99.3.1", Ports: []v1.ServicePort{{Port: 80, NodePort: 30080}}})
		b.slice("np", tcp(0, 8080), "100.244.1.1")
		b.good()
		if err := os.Remove(b.opts.StateFile); err != nil { // from here on these are another proxy's
			t.Fatal(err)
		}
		b.restart()
		outside := b.hns.AddPod(b.hns.AddNetwork("nat", "NAT", nil), "", "other", "00-15-5d-00-00-77", "172.20.0.2")
		inside := b.pod("100.244.206.80")
		mapping := []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 80}}
		nat := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"192.0.2.1"}, "HostComputeEndpoints": []any{outside}, "PortMappings": mapping})
		several := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"192.0.2.2", "192.0.2.3"}, "HostComputeEndpoints": []any{inside}, "PortMappings": mapping})
		b.tracker.DeleteService("default", "web-000")
		b.tracker.DeleteService("default", "np")

		b.good()
		if b.loadBalancer("10.99.0.1", 80) == nil || b.count() != 7 {
			t.Fatalf("%s: another proxy's load balancers were deleted without being asked to\n%s", networkType, b.hns.Dump())
		}
		b.opts.TakeOver = true
		b.restart()
		text, err := b.plane.Diff(t.Context())
		must(t, err)
		for _, want := range []string{"delete load balancer 10.99.0.1:80/TCP", "delete load balancer 10.99.3.1:80/TCP", "delete load balancer *:30080/TCP/IPv4",
			": another Service proxy left it, and no Service wants it (--hns-take-over)"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: diff does not say %q:\n%s", networkType, want, text)
			}
		}
		if n := strings.Count(text, "delete load balancer"); n != 3 || strings.Contains(text, "192.0.2.") {
			t.Errorf("%s: diff lists %d load balancers:\n%s", networkType, n, text)
		}
		b.good()
		if b.count() != 4 || !has(b, nat) || !has(b, several) || strings.Contains(b.hns.Dump(), "endpoint 10.99.0.1") || strings.Contains(b.hns.Dump(), "endpoint 10.99.3.1") {
			t.Errorf("%s: after taking over HNS has\n%s", networkType, b.hns.Dump())
		}
		b.mustHave("10.99.0.2", 80, "100.244.1.3", "100.244.1.4")

		later := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"192.0.2.4"}, "HostComputeEndpoints": []any{inside}, "PortMappings": mapping})
		b.good()
		if !has(b, later) {
			t.Errorf("%s: a load balancer that came later was deleted", networkType)
		}
	}
}

// A large Service comes in portions: diff compares with all of them.
func TestDiffWithAllPortions(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.good()
	b.simple("large", "10.99.0.1", "100.244.1.1")
	b.simple("larger", "10.99.0.2", "100.244.1.1")
	m, c := b.tracker.Flush()
	for n, sp := range c.Ports {
		costly := *sp
		costly.Cost, costly.ServiceCost = dataplane.Portion, dataplane.Portion+1
		c.Ports[n] = &costly
	}
	b.plane.Update(m, c)
	text, err := b.plane.Diff(t.Context())
	must(t, err)
	for _, vip := range []string{"10.99.0.1", "10.99.0.2"} {
		if !strings.Contains(text, vip) {
			t.Errorf("no word of %s:\n%s", vip, text)
		}
	}
}
