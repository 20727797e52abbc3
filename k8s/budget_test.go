package k8s_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/shapes"
)

// byEndpoint makes each endpoint of a port cost one.
func byEndpoint(z *k8s.Size) int { return z.Endpoints }

func simple(namespace, name string, endpoints int, age time.Duration) shapes.Hostile {
	return shapes.Hostile{Namespace: namespace, Name: name, Ports: 1, Endpoints: endpoints, IPv4: true, Age: age}
}

func tracker(l k8s.Limits, services ...shapes.Hostile) *k8s.Tracker {
	return shapes.Tracker(k8s.Options{Cost: byEndpoint, Limits: l}, services...)
}

// Which Services are refused for the sums, and that all others are served.
func TestLimits(t *testing.T) {
	services := []shapes.Hostile{
		simple("a", "old", 40, 9), simple("a", "young", 10, 1), simple("a", "middle", 30, 5),
		simple("b", "old", 20, 8), simple("b", "young", 20, 0), simple("c", "twin-1", 5, 0), simple("c", "twin-2", 5, 0),
	}
	for _, tc := range []struct {
		limits k8s.Limits
		want   string
	}{
		{k8s.Limits{}, "[]"},
		{k8s.Limits{Node: 130}, "[]"},
		{k8s.Limits{Node: 129}, "[a/young]"},
		{k8s.Limits{Node: 119}, "[a/middle a/young]"},
		{k8s.Limits{Node: 89}, "[a/middle a/young b/young]"}, // both have 40: the last by name
		{k8s.Limits{Namespace: 70}, "[a/young]"},
		{k8s.Limits{Namespace: 9}, "[a/middle a/old a/young b/old b/young c/twin-2]"},
		{k8s.Limits{Namespace: 70, Node: 110}, "[a/middle a/young]"},
		{k8s.Limits{Service: 8 * 39}, "[a/old]"},
		{k8s.Limits{Service: 8 * 39, Node: 89}, "[a/old b/young]"}, // what is too large does not count: a and b have 40
	} {
		tr := tracker(tc.limits, services...)
		m, _ := tr.Flush()
		if got := fmt.Sprint(tr.Refused()); got != tc.want {
			t.Errorf("%+v: refused %s, want %s", tc.limits, got, tc.want)
		}
		if len(m.Ports)+len(tr.Refused()) != len(services) || len(m.Warnings) != len(tr.Refused()) {
			t.Errorf("%+v: %d of %d Services are served, %d warnings: %v", tc.limits, len(m.Ports), len(services), len(m.Warnings), m.Warnings)
		}
	}
}

// The same Services are refused after a restart, in whatever order they have come, changed and gone.
func TestLimitsDependOnNoOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(nightly.Seed(t), 5))
	limits := k8s.Limits{Service: 8 * 90, Namespace: 600, Node: 1000}
	for range nightly.Count(50, 1000) {
		running := tracker(limits)
		now := map[string]shapes.Hostile{}
		for range 60 {
			name := fmt.Sprint("s", r.IntN(40))
			s := simple(fmt.Sprint("ns", len(name)%2), name, r.IntN(100), time.Duration(r.IntN(5)))
			running.DeleteEndpointSlice(s.Namespace, name+"-IPv4-0")
			running.DeleteService(s.Namespace, name)
			delete(now, name)
			if r.IntN(5) > 0 {
				running.Apply(s.Objects())
				now[name] = s
			}
			running.Flush()
		}
		fresh := tracker(limits)
		for _, s := range now {
			fresh.Apply(s.Objects())
		}
		a, _ := running.Flush()
		b, _ := fresh.Flush()
		if x, y := running.Refused(), fresh.Refused(); !slices.Equal(x, y) || len(a.Ports) != len(b.Ports) {
			t.Fatalf("refused are %v, and after a restart %v", x, y)
		}
	}
}

// A refusal says how much, how much at most, and which flag; what was in force goes, and so do its claims. It is served again once it fits.
func TestRefusal(t *testing.T) {
	small, large := simple("default", "web", 10, 2), simple("default", "web", 30, 2)
	small.Addresses, large.Addresses = 1, 1
	rival := simple("default", "rival", 1, 1)
	rival.Addresses = 1 // the same one
	tr := tracker(k8s.Limits{Service: 8 * 20}, small, rival)
	served := func(m *k8s.Model, name string) (frontends int) {
		for n, sp := range m.Ports {
			for _, f := range sp.Frontends {
				if n.Name == name && f.ShadowedBy == "" {
					frontends++
				}
			}
		}
		return frontends
	}
	m, _ := tr.Flush()
	if a, b := served(m, "web"), served(m, "rival"); a != 2 || b != 1 {
		t.Fatalf("served at %d and %d addresses, want 2 and 1", a, b)
	}
	tr.Apply(large.Objects())
	m, changes := tr.Flush()
	if a, b := served(m, "web"), served(m, "rival"); a != 0 || b != 2 || len(changes.Ports) != 2 {
		t.Errorf("served at %d and %d addresses, want 0 and 2; changed are %v", a, b, changes.Ports)
	}
	text := fmt.Sprint(m.Warnings)
	for _, part := range []string{"Service default/web", "30", "20", "--cost-limit"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q lacks %q", text, part)
		}
	}
	if len(m.Warnings) != 1 || m.Warnings[0].Event != k8s.EventRefused {
		t.Errorf("warnings: %v", m.Warnings)
	}
	for _, sp := range small.Objects() {
		svc, ok := sp.Object.(*v1.Service)
		if !ok {
			continue
		}
		port := uint16(svc.Spec.Ports[0].Port)
		for _, ip := range []string{svc.Spec.ClusterIP, svc.Spec.ExternalIPs[0]} {
			at := netip.AddrPortFrom(netip.MustParseAddr(ip), port)
			if list := tr.NotServed(at, "TCP", false); len(list) != 1 || !strings.Contains(list[0].Why, "--cost-limit") {
				t.Errorf("why %s is not served: %v", at, list)
			}
		}
	}
	tr.Apply(small.Objects())
	if m, _ = tr.Flush(); served(m, "web") != 2 || served(m, "rival") != 1 || len(tr.Refused()) != 0 {
		t.Errorf("not as before: %v, refused %v", m.Ports, tr.Refused())
	}
	tr.DeleteService("default", "web")
	if m, _ = tr.Flush(); served(m, "rival") != 2 {
		t.Errorf("the claims of a Service that is gone are left")
	}
}

// The source ranges of a Service can get an address of the node after the Service: it is refused as after a restart.
func TestLimitsFollowTheNode(t *testing.T) {
	o := k8s.Options{NodeName: "n1", Limits: k8s.Limits{Service: 8}, Cost: func(z *k8s.Size) (n int) {
		if z.OwnAddress {
			n = 2
		}
		return n
	}}
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	s.Spec.ClusterIP, s.Spec.Ports = "10.96.0.1", []v1.ServicePort{{Port: 80}}
	s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}
	tr := k8s.NewTracker(o)
	for _, object := range []k8s.Object{s, n} {
		ref, _ := k8s.RefOf(object)
		tr.Apply([]k8s.Change{{Op: k8s.Upsert, Ref: ref, Object: object}})
		tr.Flush()
	}
	if len(tr.Refused()) != 1 {
		t.Error("not refused")
	}
}

// The cluster IP of a refused Service goes to no other one that asks for it as an external IP (CVE-2020-8554), until the Service is gone.
func TestRefusedKeepsItsClusterIP(t *testing.T) {
	web, thief := simple("default", "web", 30, 2), simple("default", "thief", 1, 1)
	tr := tracker(k8s.Limits{Service: 8 * 20}, web, thief)
	var clusterIP string
	for _, c := range web.Objects() {
		if s, ok := c.Object.(*v1.Service); ok {
			clusterIP = s.Spec.ClusterIP
		}
	}
	for _, c := range thief.Objects() {
		if s, ok := c.Object.(*v1.Service); ok {
			s.Spec.ExternalIPs = []string{clusterIP}
			tr.Apply([]k8s.Change{c})
		}
	}
	taken := func() bool {
		m, _ := tr.Flush()
		for _, sp := range m.Ports {
			for _, f := range sp.Frontends {
				if f.Address.String() == clusterIP && f.ShadowedBy == "" {
					return true
				}
			}
		}
		return false
	}
	if taken() || len(tr.Refused()) != 1 {
		t.Errorf("another Service has the cluster IP of a refused one (%v)", tr.Refused())
	}
	tr.DeleteService("default", "web")
	if !taken() {
		t.Error("the Service is gone, and its cluster IP is not free")
	}
}

// The warnings about one object are bounded, however many of its fields are bad.
func TestWarningsAreBounded(t *testing.T) {
	a, b := simple("a", "first", 1, 2), simple("b", "second", 1, 1)
	a.Addresses, b.Addresses = 1000, 1000
	m, _ := tracker(k8s.Limits{}, a, b).Flush()
	if len(m.Warnings) != 101 {
		t.Errorf("%d warnings about 1,000 addresses that another Service has", len(m.Warnings))
	}
}

// A few endpoints more or less make no other warning of a refused Service: each one is an Event.
func TestRefusalStays(t *testing.T) {
	var texts []string
	for _, endpoints := range []int{1301, 1305} {
		tr := tracker(k8s.Limits{Service: 8 * 20}, simple("default", "web", endpoints, 2))
		m, _ := tr.Flush()
		texts = append(texts, fmt.Sprint(m.Warnings))
	}
	if texts[0] != texts[1] || !strings.Contains(texts[0], "2700") && !strings.Contains(texts[0], "1400") {
		t.Errorf("%q", texts)
	}
}
