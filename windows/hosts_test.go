package windows

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// From HNS 15.5 a change is a modification in place; before, the load balancer is deleted and created: 15.4 accepts
// modifications and ignores them.
func TestChangeByVersion(t *testing.T) {
	for _, c := range []struct {
		v                  hns.Version
		modified, replaced int
	}{
		{hns.Version{Major: 15, Minor: 5}, 1, 0},
		{hns.Version{Major: 15, Minor: 4}, 0, 1},
		{hns.Version{Major: 9, Minor: 3}, 0, 1},
	} {
		b := newBed(t, hns.NetworkOverlay, c.v)
		b.simple("web", "10.99.0.1", "100.244.1.1")
		b.good()
		id := b.loadBalancer("10.99.0.1", 80).ID
		b.simple("web", "10.99.0.1", "100.244.1.2")
		calls := b.good()
		if m, d := hnsfake.Count(calls, "HcnModifyLoadBalancer"), deletions(calls); m != c.modified || d != c.replaced {
			t.Errorf("HNS %s: %d modifications, %d deletions", c.v, m, d)
		}
		l := b.mustHave("10.99.0.1", 80, "100.244.1.2")
		if (l.ID == id) != (c.modified == 1) {
			t.Errorf("HNS %s: the load balancer has id %s, before %s", c.v, l.ID, id)
		}
		if remotes(b) != 2 { // one pod, one VIP
			t.Errorf("HNS %s: the endpoint of the old pod stays\n%s", c.v, b.hns.Dump())
		}
	}
}

// An HNS that says 15.5 and ignores modifications all the same is found out.
func TestModificationThatIsNotApplied(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.good()
	b.hns.Inject(hnsfake.Fault{Func: "HcnModifyLoadBalancer", Times: -1, Do: func() { b.hns.SetVersion(hns.Version{Major: 15, Minor: 4}) }})
	b.simple("web", "10.99.0.1", "100.244.1.2")
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.2")
	if b.plane.Detail().ModifyInPlace {
		t.Error("status says that load balancers are modified in place")
	}
}

// The network can go and come back, with another id and without its endpoints.
func TestNetworkDisappears(t *testing.T) {
	b := newBed(t, hns.NetworkL2Bridge, newest)
	b.pod("10.244.1.5")
	b.service("web", v1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: tcp(80, 8080)})
	b.slice("web", tcp(0, 8080), "10.244.1.5@"+nodeName, "10.244.2.7")
	b.good()
	b.hns.RemoveNetwork(b.network)
	for range 2 {
		if n := writes(b.sync()); n != 0 {
			t.Errorf("%d changes without a network", n)
		}
	}
	if s := b.plane.Detail(); !strings.Contains(s.Error, `no network "Calico"`) || b.count() != 1 {
		t.Errorf("status %q, %d load balancers", s.Error, b.count())
	}
	b.network = b.hns.AddNetwork("Calico", hns.NetworkL2Bridge, nil)
	b.pod("10.244.1.5")
	b.good()
	b.mustHave("10.96.0.1", 80, "10.244.1.5", "10.244.2.7")

	// So can a network without endpoints, right before the first Service comes.
	b = newBed(t, hns.NetworkL2Bridge, newest)
	b.good()
	b.hns.RemoveNetwork(b.network)
	b.simple("web", "10.96.0.1", "10.244.2.7")
	calls := b.sync()
	if s := b.plane.Detail(); hnsfake.Count(calls, "HcnCreateLoadBalancer") != 0 || !strings.Contains(s.Error, `no network "Calico"`) {
		t.Errorf("status %q", s.Error)
	}
}

// Pods' endpoints are the CNI plugin's to make: they are waited for, not slept for, and the rest is served meanwhile.
func TestWaitsForTheCNI(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.206.70@"+nodeName, "100.244.1.1")
	b.simple("own", "10.99.0.2", "100.244.206.71@"+nodeName)
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.1")
	if s := b.plane.Detail(); len(s.Waiting) != 2 || !strings.Contains(s.Waiting[1], "default/web: endpoint 100.244.206.70") {
		t.Errorf("waiting %q", s.Waiting)
	}
	b.pod("100.244.206.70")
	b.pod("100.244.206.71")
	b.good()
	b.mustHave("10.99.0.1", 80, "100.244.1.1", "100.244.206.70")
	b.mustHave("10.99.0.2", 80, "100.244.206.71")
	if s := b.plane.Detail(); len(s.Waiting) != 0 {
		t.Errorf("waiting %q", s.Waiting)
	}
}

// The source VIP comes from Calico's endpoint if no flag names it; an overlay network without one is waited for.
func TestSourceVIPFromTheCNI(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.opts.SourceVIP = netip.Addr{}
	for _, e := range b.hns.Endpoints() {
		b.hns.DropEndpoint(e.ID)
	}
	b.restart()
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.sync()
	if s := b.plane.Detail(); !strings.Contains(s.Error, "Calico_ep") || b.count() != 0 {
		t.Errorf("status %q, %d load balancers", s.Error, b.count())
	}
	b.hns.AddPod(b.network, "", "Calico_ep", "00-15-5d-00-00-09", "100.244.206.99")
	b.good()
	if l := b.mustHave("10.99.0.1", 80, "100.244.1.1"); l.SourceVIP != "100.244.206.99" {
		t.Errorf("source VIP %s", l.SourceVIP)
	}
	b.hns.RemoveNetwork(b.network) // the CNI plugin recreates its network, and chooses another address
	b.network = b.hns.AddNetwork("Calico", hns.NetworkOverlay, routes)
	b.hns.AddPod(b.network, "", "Calico_ep", "00-15-5d-00-00-09", "100.244.206.100")
	b.good()
	if l := b.mustHave("10.99.0.1", 80, "100.244.1.1"); l.SourceVIP != "100.244.206.100" {
		t.Errorf("source VIP %s after the network was recreated", l.SourceVIP)
	}
}

// Flannel makes no endpoint for the source VIP: nkp takes the one that kube-proxy made, else status says what to set, and where
// Flannel's scripts keep the address that they have reserved.
func TestSourceVIPWithFlannel(t *testing.T) {
	flannel := func() *bed {
		b := newBed(t, hns.NetworkOverlay, newest)
		b.opts.SourceVIP = netip.Addr{}
		for _, e := range b.hns.Endpoints() {
			b.hns.DropEndpoint(e.ID)
		}
		b.restart()
		b.simple("web", "10.99.0.1", "100.244.1.1")
		return b
	}
	b := flannel()
	b.sync()
	why := b.plane.Detail().Why
	for _, want := range []string{"set --source-vip to an address of this node's pod range", `C:\k\sourceVip.json`} {
		if !strings.Contains(why, want) {
			t.Errorf("status does not say %q: %s", want, why)
		}
	}

	b = flannel()
	made := b.hns.AddEndpoint(hnsfake.Object{"HostComputeNetwork": b.network, "MacAddress": hostMAC1,
		"IpConfigurations": []any{map[string]any{"IpAddress": "100.244.206.70"}}})
	b.good()
	if l := b.mustHave("10.99.0.1", 80, "100.244.1.1"); l.SourceVIP != "100.244.206.70" {
		t.Errorf("source VIP %s, want that of the endpoint that kube-proxy made (%s)", l.SourceVIP, made)
	}
	b.restart()
	if n := writes(b.good()); n != 0 {
		t.Errorf("%d writes at a restart", n)
	}
}

// A node joins after its pods are known: endpoints made for an address outside are recreated for the right node. If it is every endpoint
// of a load balancer, the load balancer is deleted first, because HNS has one endpoint for an address.
func TestRemoteSubnetArrivesLater(t *testing.T) {
	for _, endpoints := range [][]string{{"100.244.9.1", "100.244.1.1"}, {"100.244.9.1"}} {
		b := newBed(t, hns.NetworkOverlay, newest)
		b.simple("web", "10.99.0.1", endpoints...)
		expect := func(when, vip, node string) {
			t.Helper()
			b.good()
			if l := b.mustHave("10.99.0.1", 80, endpoints...); l.SourceVIP != vip {
				t.Errorf("%s: source VIP %s for %v, want %s", when, l.SourceVIP, endpoints, vip)
			}
			if d := b.hns.Dump(); !strings.Contains(d, "endpoint 100.244.9.1 mac=02-11-64-f4-09-01 node="+node+"\n") {
				t.Errorf("%s: the endpoint does not lead to %s\n%s", when, node, d)
			}
		}
		expect("outside the cluster", nodeIP, nodeIP)
		b.hns.SetRoutes(b.network, map[string]string{"100.244.1.0/24": otherNode, "100.244.9.0/24": "10.20.30.19"})
		expect("the node has joined", sourceVIP, "10.20.30.19")
	}
}

// A pod address that was on another node is a pod's here now: the remote endpoint must not shadow the pod's own.
func TestPodMovesHere(t *testing.T) {
	b := newBed(t, hns.NetworkL2Bridge, newest)
	b.simple("web", "10.96.0.1", "10.244.2.7", "10.244.2.8")
	b.good()
	b.simple("web", "10.96.0.1", "10.244.2.7@"+nodeName, "10.244.2.8")
	b.good() // the pod's endpoint is not there yet, and the remote one would lead elsewhere
	b.mustHave("10.96.0.1", 80, "10.244.2.8")
	if n := remotes(b); n != 1 {
		t.Errorf("%d remote endpoints: the old one would be in the CNI plugin's way\n%s", n, b.hns.Dump())
	}
	b.pod("10.244.2.7")
	b.good()
	b.mustHave("10.96.0.1", 80, "10.244.2.7", "10.244.2.8")
}

// Another source VIP: its endpoint is made, the load balancers follow, and the old one, which nkp had made, goes last.
func TestSourceVIPChanges(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.opts.SourceVIP = netip.MustParseAddr("100.244.206.90")
	b.restart()
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.good()
	if !strings.Contains(strings.Join(b.addresses(), " "), "100.244.206.90") {
		t.Fatalf("no endpoint holds the source VIP: %v", b.addresses())
	}
	b.opts.SourceVIP = netip.MustParseAddr("100.244.206.91")
	b.restart()
	b.hns.Inject(hnsfake.Fault{Func: "HcnModifyLoadBalancer", Times: 1, Code: hns.CodeFail, Text: "busy"})
	b.sync()
	if !strings.Contains(strings.Join(b.addresses(), " "), "100.244.206.90") {
		t.Error("the endpoint of a source VIP in use was deleted")
	}
	b.expire()
	b.good()
	if l := b.mustHave("10.99.0.1", 80, "100.244.1.1"); l.SourceVIP != "100.244.206.91" || strings.Contains(strings.Join(b.addresses(), " "), "100.244.206.90") {
		t.Errorf("source VIP %s, endpoints %v", l.SourceVIP, b.addresses())
	}
}
