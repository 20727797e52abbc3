package windows

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/reconcile"
)

// deletions counts the load balancers that calls deleted.
func deletions(calls []hnsfake.Call) int { return hnsfake.Count(calls, "HcnDeleteLoadBalancer") }

// writes counts the calls that change something.
func writes(calls []hnsfake.Call) (n int) {
	for _, c := range calls {
		if strings.HasPrefix(c.Func, "HcnCreate") || strings.HasPrefix(c.Func, "HcnModify") || strings.HasPrefix(c.Func, "HcnDelete") {
			n++
		}
	}
	return n
}

// kube-proxy deletes every load balancer at its start: 200 Services are down for 13.7 s. Here a restart changes nothing,
// with the state file or without it.
func TestRestartDeletesNoLoadBalancer(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.many(200, 2)
	b.good()
	if b.count() != 200 {
		t.Fatalf("%d load balancers, want 200", b.count())
	}
	for _, lost := range []bool{false, true} {
		if lost {
			must(t, os.Remove(b.opts.StateFile))
		}
		b.restart()
		if n := writes(b.good()); n != 0 {
			t.Errorf("restart (state file lost: %t) made %d changes, want none", lost, n)
		}
	}
	// What was adopted without the state file is nkp's again: it goes with its Service.
	b.tracker.DeleteService("default", "web-000")
	b.good()
	if b.loadBalancer("10.99.0.1", 80) != nil {
		t.Error("the load balancer of a deleted Service stays after the state file was lost")
	}
}

// One transient enumerate error makes kube-proxy wipe everything for 30 s.
func TestTransientEnumerateFailureRemovesNothing(t *testing.T) {
	for _, fn := range []string{"HcnEnumerateLoadBalancers", "HcnEnumerateEndpoints", "HcnEnumerateNetworks", "HcnOpenNetwork", "HcnOpenLoadBalancer", "HcnQueryEndpointProperties"} {
		b := newBed(t, hns.NetworkOverlay, newest)
		b.many(20, 3)
		b.good()
		before := b.hns.Dump()
		b.restart() // reads everything
		b.hns.Inject(hnsfake.Fault{Func: fn, Times: 2, Code: hns.CodeFail, Text: "RPC server is too busy"})
		for range 2 {
			if n := writes(b.sync()); n > 0 {
				t.Errorf("%s failed: %d changes were made", fn, n)
			}
		}
		if s := b.plane.Detail(); s.Error == "" || !strings.Contains(s.Error, "RPC server is too busy") || !strings.Contains(s.Error, "0x80004005") {
			t.Errorf("%s failed: status says %q", fn, s.Error)
		}
		if got := b.hns.Dump(); got != before {
			t.Errorf("%s failed: HNS changed", fn)
		}
		b.good()
	}
}

// kube-proxy never notices.
func TestLoadBalancerDeletedOutOfBandComesBack(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.many(5, 2)
	b.good()
	before := b.hns.Dump()
	b.hns.DropLoadBalancer(b.loadBalancer("10.99.0.3", 80).ID)
	b.good()
	if got := b.hns.Dump(); got != before {
		t.Errorf("after a load balancer was lost HNS has\n%swant\n%s", got, before)
	}
	for _, e := range b.hns.Endpoints() {
		if e.Remote() && e.IpConfigurations[0].IpAddress == "100.244.1.3" {
			b.hns.DropEndpoint(e.ID)
		}
	}
	b.good()
	if got := b.hns.Dump(); got != before {
		t.Errorf("after an endpoint was lost HNS has\n%swant\n%s", got, before)
	}
}

// In kube-proxy failed deletes end in a permanent blackout of the Service.
func TestFailedDeleteIsRetriedAndBlocksNothing(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, hns.Version{Major: 13, Minor: 2}) // cannot modify: a change deletes and creates
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.simple("old", "10.99.0.2", "100.244.1.2")
	b.good()
	b.hns.Inject(hnsfake.Fault{Func: "HcnDeleteLoadBalancer", Times: 3, Code: hns.CodeFail, Text: "busy"})
	b.simple("web", "10.99.0.1", "100.244.1.1", "100.244.1.9")
	b.tracker.DeleteService("default", "old")
	b.simple("new", "10.99.0.3", "100.244.1.3")
	b.sync()
	b.mustHave("10.99.0.1", 80, "100.244.1.1") // still serves as before
	b.mustHave("10.99.0.3", 80, "100.244.1.3")
	if s := b.plane.Detail(); len(s.Failures) != 2 {
		t.Fatalf("failures %+v, want the change of web and the deletion of old", s.Failures)
	} else if f := s.Failures[0]; !strings.Contains(f.Object+f.Service+f.Error, "10.99.0.1:80") || !strings.Contains(f.Service, "default/web") ||
		!strings.Contains(f.Error, "busy") || f.RetryAt.IsZero() {
		t.Errorf("a failure does not say what failed for whom: %+v", f)
	}
	failed := map[reconcile.FailedLoadBalancer]uint64{
		{Op: "update", Family: k8s.IPv4, Type: "clusterip", Error: "other"}: 1, {Op: "delete", Family: k8s.IPv4, Type: "unknown", Error: "other"}: 1,
	}
	if got := b.plane.Detail().Counts.FailedLoadBalancers; !maps.Equal(got, failed) {
		t.Errorf("failures are counted as %v, want %v", got, failed)
	}
	if n := writes(b.sync()); n != 0 {
		t.Errorf("%d changes were tried before they were due", n)
	}
	b.expire()
	b.sync()
	b.expire()
	b.expire()
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.1", "100.244.1.9")
	if b.loadBalancer("10.99.0.2", 80) != nil {
		t.Error("the load balancer of the deleted Service stays")
	}
}

// In kube-proxy failed creates leak remote endpoints.
func TestFailedCreateLeaksNothing(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.good()
	before := b.hns.Dump()
	b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: -1, Code: hns.CodeFail, Text: "no"})
	b.simple("web", "10.99.0.1", "100.244.1.1", "100.244.1.2")
	for range 3 {
		b.sync()
	}
	b.tracker.DeleteService("default", "web")
	b.hns.Heal()
	b.good()
	if got := b.hns.Dump(); got != before {
		t.Errorf("after a Service that could not be made is gone HNS has\n%s", got)
	}
}

// A replacement that is refused leaves what was there.
func TestRefusedReplacementLeavesTheOldOne(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, hns.Version{Major: 13, Minor: 2})
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.good()
	b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 1, Code: hns.CodeInvalidPolicy, Text: "no"})
	b.simple("web", "10.99.0.1", "100.244.1.1", "100.244.1.2")
	b.sync()
	b.mustHave("10.99.0.1", 80, "100.244.1.1")
	b.expire()
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.1", "100.244.1.2")
}

// HNS may do what it was asked for and fail to say so; the agent may die at any call. Nothing is made twice or forgotten.
func TestLostAnswerIsAdopted(t *testing.T) {
	for _, fn := range []string{"HcnCreateLoadBalancer", "HcnCreateEndpoint", "HcnCreateEndpoint 10.99.0.3", "HcnModifyLoadBalancer", "HcnDeleteLoadBalancer", "HcnDeleteEndpoint"} {
		fn, about, _ := strings.Cut(fn, " ")
		for _, die := range []bool{false, true} {
			b := newBed(t, hns.NetworkOverlay, newest)
			b.simple("web", "10.99.0.1", "100.244.1.1")
			b.simple("gone", "10.99.0.2", "100.244.1.3")
			b.good()
			b.hns.Inject(hnsfake.Fault{Func: fn, Times: 1, Code: hns.CodeFail, Text: "the pipe is being closed", Applied: true,
				Match: func(args []string) bool { return strings.Contains(args[len(args)-1], about) }})
			b.simple("web", "10.99.0.1", "100.244.1.1", "100.244.1.2")
			b.simple("new", "10.99.0.3", "100.244.1.4")
			b.tracker.DeleteService("default", "gone")
			b.sync()
			if die {
				b.restart()
				b.tracker.DeleteService("default", "new")
			} else {
				b.expire()
			}
			b.good()
			b.good()
			b.mustHave("10.99.0.1", 80, "100.244.1.1", "100.244.1.2")
			want, wantRemotes := 2, 5 // web and new: two VIPs, three pods
			if die {
				want, wantRemotes = 1, 3
			}
			if b.count() != want {
				t.Errorf("%s: %d load balancers, want %d\n%s", fn, b.count(), want, b.hns.Dump())
			}
			if n := remotes(b); n != wantRemotes {
				t.Errorf("%s: %d remote endpoints\n%s", fn, n, b.hns.Dump())
			}
		}
	}
}

// A modification that worked and was not confirmed, and then is not wanted any more: what is there must be read again.
func TestUnconfirmedModificationIsReadAgain(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.good()
	b.hns.Inject(hnsfake.Fault{Func: "HcnModifyLoadBalancer", Times: 1, Code: hns.CodeFail, Text: "no answer", Applied: true})
	b.simple("web", "10.99.0.1", "100.244.1.1", "100.244.1.2")
	b.sync()
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.1")
}

// What was about to be created and was not is not nkp's when somebody else makes it.
func TestFailedIntentionIsForgotten(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: -1, Code: hns.CodeFail, Text: "no"})
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.sync()
	b.tracker.DeleteService("default", "web")
	b.sync()
	b.hns.Heal()
	backend := b.pod("100.244.206.80")
	theirs := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.99.0.1"}, "HostComputeEndpoints": []any{backend},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 80}}})
	b.good()
	if !has(b, theirs) {
		t.Error("somebody else's load balancer was deleted")
	}
}

// remotes counts remote endpoints.
func remotes(b *bed) (n int) {
	for _, e := range b.hns.Endpoints() {
		if e.Remote() {
			n++
		}
	}
	return n
}

// One without port mappings makes kube-proxy panic.
func TestLoadBalancerWithoutPortMappings(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	id := b.hns.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.99.0.1"}})
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.good()
	b.restart()
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.1")
	if !has(b, id) {
		t.Error("a load balancer that is not nkp's was deleted")
	}
}

func has(b *bed, id string) bool {
	return slices.ContainsFunc(b.hns.LoadBalancers(), func(l hns.LoadBalancer) bool { return l.ID == id })
}

// kube-proxy forwards health checks over the Service's protocol: HTTP over UDP.
func TestUDPGetsNoUDPHealthCheck(t *testing.T) {
	b := newBed(t, hns.NetworkL2Bridge, newest, func(o *Options) {
		o.ForwardHealthCheckVIP, o.RootEndpointName, o.HealthzPort = true, "cbr0", 10256
	})
	b.hns.AddPod(b.network, "", "cbr0", "00-15-5d-00-00-02", "10.244.1.2")
	b.pod("10.244.1.5")
	b.service("dns", v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.53", HealthCheckNodePort: 32000,
		ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal,
		Ports:                 []v1.ServicePort{{Name: "dns", Port: 53, Protocol: v1.ProtocolUDP}}}, ingress("198.51.100.53"))
	b.slice("dns", []v1.ServicePort{{Name: "dns", Protocol: v1.ProtocolUDP, TargetPort: tcp(0, 5353)[0].TargetPort}}, "10.244.1.5@"+nodeName)
	b.good()
	l := b.mustHave("198.51.100.53", 32000, "10.244.1.2")
	if l.PortMappings[0] != (hns.PortMapping{Protocol: 6, InternalPort: 32000, ExternalPort: 32000}) {
		t.Errorf("health check %+v, want TCP", l.PortMappings[0])
	}
}

func ingress(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
		}
	}
}
