package k8s

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
)

// world makes random changes to a small set of objects whose addresses collide often, some of them nonsense.
type world struct {
	*rand.Rand
	objects map[Ref]Change
}

// one picks one of the choices.
func one[T any](w *world, choices ...T) T { return choices[w.IntN(len(choices))] }

// some picks up to n of the choices, repetitions included.
func some[T any](w *world, n int, choices ...T) []T {
	var list []T
	for range w.IntN(n + 1) {
		list = append(list, one(w, choices...))
	}
	return list
}

func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

func (w *world) mutate() Change {
	if len(w.objects) > 0 && w.chance(25) {
		refs := slices.SortedFunc(maps.Keys(w.objects), Ref.Compare)
		ref := refs[w.IntN(len(refs))]
		if w.chance(20) {
			c := w.objects[ref]
			c.Origin.Document++
			w.objects[ref] = c
			return Change{Op: Renew, Ref: ref, Object: c.Object, Origin: c.Origin}
		}
		delete(w.objects, ref)
		return Change{Op: Delete, Ref: ref}
	}
	var o Object
	switch n := w.IntN(100); {
	case n < 40:
		o = w.service()
	case n < 90:
		o = w.slice()
	case n < 96:
		o = w.node()
	default:
		o = &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: one(w, "a", "b")},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: some(w, 2, "10.96.0.0/12", "fd00::/108", "bad")}}
	}
	ref, _ := RefOf(o)
	c := Change{Upsert, ref, o, Origin{"f.yaml", 1 + w.IntN(3), 0}}
	w.objects[ref] = c
	return c
}

func (w *world) service() Object {
	o := &v1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: one(w, "a", "b", "c", "d", "e"),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(w.IntN(3)), 0)),
	}}
	if w.chance(10) {
		o.Labels = map[string]string{LabelServiceProxyName: one(w, "nkp", "other")}
	}
	s := &o.Spec
	s.Type = one(w, "", v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)
	s.ClusterIPs = []string{one(w, "10.96.0.1", "10.96.0.2", "10.96.0.3", "None", "", "bad")}
	s.ClusterIP = s.ClusterIPs[0]
	if w.chance(50) {
		s.ClusterIPs = append(s.ClusterIPs, one(w, "fd00::1", "fd00::2", "10.96.0.4"))
		s.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	}
	s.ExternalIPs = some(w, 2, "1.2.3.4", "1.2.3.5", "2001:db8::1", "192.168.0.1", "bad")
	for range w.IntN(4) {
		s.Ports = append(s.Ports, v1.ServicePort{
			Name: one(w, "", "http", "dns"), Port: int32(w.IntN(3)), Protocol: one(w, "", v1.ProtocolTCP, v1.ProtocolUDP), NodePort: int32(w.IntN(3))})
	}
	for _, ip := range some(w, 2, "5.6.7.8", "1.2.3.4", "2001:db8::2", "") {
		mode := one(w, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip, IPMode: one(w, nil, &mode)})
	}
	s.LoadBalancerSourceRanges = some(w, 2, "203.0.113.0/24", "0.0.0.0/0", "2001:db8::/32", "bad")
	s.ExternalTrafficPolicy = one(w, "", v1.ServiceExternalTrafficPolicyLocal)
	s.HealthCheckNodePort = one(w, int32(0), 32000, 32001)
	internal := v1.ServiceInternalTrafficPolicyLocal
	s.InternalTrafficPolicy = one(w, nil, &internal)
	s.SessionAffinity = one(w, "", v1.ServiceAffinityClientIP)
	return o
}

func (w *world) slice() Object {
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: one(w, "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")}}
	o.Labels = map[string]string{discoveryv1.LabelServiceName: one(w, "a", "b", "c", "d", "e", "gone", "")}
	if w.chance(5) {
		o.Labels[v1.IsHeadlessService] = ""
	}
	o.AddressType = one(w, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	for range w.IntN(4) {
		name, port, protocol := one(w, "", "http", "dns"), int32(w.IntN(3)), one(w, v1.ProtocolTCP, v1.ProtocolUDP)
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: one(w, nil, &protocol)})
	}
	yes, no := true, false
	for range w.IntN(5) {
		e := discoveryv1.Endpoint{
			Addresses: some(w, 2, "10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00:1::1", "fd00:1::2", "bad"),
			Conditions: discoveryv1.EndpointConditions{
				Ready: one(w, nil, &yes, &no), Serving: one(w, nil, &yes, &no), Terminating: one(w, nil, &yes, &no)},
		}
		node := one(w, "n1", "n2")
		e.NodeName = one(w, nil, &node)
		if w.chance(60) {
			e.Hints = &discoveryv1.EndpointHints{}
			for _, z := range some(w, 2, "a", "b") {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
			}
			for _, n := range some(w, 2, "n1", "n2") {
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
			}
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	return o
}

func (w *world) node() Object {
	o := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: one(w, "n1", "n1", "n2"), Labels: map[string]string{v1.LabelTopologyZone: one(w, "a", "b")}}}
	o.Spec.PodCIDRs = some(w, 1, "10.0.0.0/24", "bad")
	for _, ip := range some(w, 2, "192.168.0.1", "192.168.0.2", "fd00:9::1", "bad") {
		o.Status.Addresses = append(o.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return o
}

// TestIncremental checks, over thousands of random changes, that a tracker that was fed them one after the other
// holds what a new tracker makes of the objects as they are, and that the changes it reports are exactly the difference.
func TestIncremental(t *testing.T) {
	steps, seed := nightly.Count(600, 20_000), nightly.Seed(t)
	for i, opts := range []Options{
		{NodeName: "n1"},
		{NodeName: "n1", NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}},
		{NodeName: "n1", ServiceProxyName: "nkp", NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("fd00:9::/64")}},
		{NodeName: "n2", Families: []Family{IPv4}, DetectLocal: DetectLocal{Mode: DetectByNodeCIDR}},
		{NodeName: "n1", NodePortPrimary: true, LocalAddresses: []netip.Addr{netip.MustParseAddr("192.168.0.7")}},
		{NodeName: "n1", NodePortPrimary: true, NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.2/31"), netip.MustParsePrefix("127.0.0.0/8")}},
		{NodeName: "n1", NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}, Limits: Limits{Service: 80, Namespace: 9, Node: 7},
			Cost: func(z *Size) int {
				n := z.Endpoints + z.Local + z.Frontends + z.Firewalled*z.Ranges + len(z.Weights) + len(z.LocalWeights) + z.ConsistentRanges
				if z.OwnAddress {
					n += 5
				}
				return n
			}},
		{NodeName: "n1", IgnoreLoadBalancers: true, SkipServices: []ServiceName{{"ns", "b"}, {"ns", "a"}}},
		{},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := &world{rand.New(rand.NewPCG(seed, uint64(i))), map[Ref]Change{}}
			tracker := NewTracker(opts)
			before, _ := tracker.Flush()
			before = before.Clone()
			contents := map[*ServicePort]string{} // of what was handed out
			for step := range steps {
				var batch []Change
				for range 1 + w.IntN(3) {
					batch = append(batch, w.mutate())
				}
				tracker.Apply(batch)
				if w.chance(20) { // the node's interfaces have its addresses before the Node object has, or after
					opts.LocalAddresses = nil
					for _, ip := range some(w, 3, "192.168.0.1", "192.168.0.2", "192.168.0.7", "fd00:9::1") {
						opts.LocalAddresses = append(opts.LocalAddresses, netip.MustParseAddr(ip))
					}
					tracker.SetLocalAddresses(opts.LocalAddresses)
				}
				got, changes := tracker.Flush()
				want := scratch(w, opts)
				if !reflect.DeepEqual(normal(got), normal(want)) {
					t.Fatalf("step %d, after %v:\n--- incremental\n%+v\n--- from scratch\n%+v", step, batch, got.View(nil), want.View(nil))
				}
				checkChanges(t, step, before, got, changes)
				for p, was := range contents {
					if is := fmt.Sprintf("%+v", *p); is != was {
						t.Fatalf("step %d: a Service port that was handed out was changed from\n%s to\n%s", step, was, is)
					}
				}
				contents = map[*ServicePort]string{}
				for _, p := range got.Ports {
					contents[p] = fmt.Sprintf("%+v", *p)
				}
				before = got.Clone()
			}
		})
	}
}

// scratch feeds the objects to a new tracker in random order.
func scratch(w *world, opts Options) *Model {
	all := slices.SortedFunc(maps.Values(w.objects), func(a, b Change) int { return a.Ref.Compare(b.Ref) })
	w.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	tracker := NewTracker(opts)
	tracker.Apply(all)
	m, _ := tracker.Flush()
	return m
}

// normal returns a model in which empty and nil lists look alike, without costs: a change of these alone is none.
func normal(m *Model) Model {
	n := *m
	n.Ports = map[PortName]*ServicePort{}
	for name, p := range m.Ports {
		free := *p
		free.Cost, free.ServiceCost = 0, 0
		n.Ports[name] = &free
	}
	n.Warnings = append([]Warning{}, n.Warnings...)
	n.ServiceCIDRs = append([]netip.Prefix{}, n.ServiceCIDRs...)
	n.Skipped = append([]ServiceName{}, n.Skipped...)
	n.Node.IPs = append([]netip.Addr{}, n.Node.IPs...)
	n.Node.Local = append([]netip.Addr{}, n.Node.Local...)
	n.Node.PodCIDRs = append([]netip.Prefix{}, n.Node.PodCIDRs...)
	n.Detector.CIDRs = append([]netip.Prefix{}, n.Detector.CIDRs...)
	return n
}

func checkChanges(t *testing.T, step int, before, after *Model, changes Changes) {
	t.Helper()
	want := map[PortName]*ServicePort{}
	for name := range before.Ports {
		if after.Ports[name] == nil {
			want[name] = nil
		}
	}
	for name, p := range after.Ports {
		old := before.Ports[name]
		if old == nil || !reflect.DeepEqual(old, p) {
			want[name] = p
		} else if old != p {
			t.Fatalf("step %d: %s is the same but was replaced", step, name)
		}
	}
	if !reflect.DeepEqual(want, changes.Ports) {
		t.Fatalf("step %d: changes %v, want %v", step, changes.Ports, want)
	}
	health := map[ServiceName]*HealthCheck{}
	for name := range before.HealthChecks {
		if _, ok := after.HealthChecks[name]; !ok {
			health[name] = nil
		}
	}
	for name, h := range after.HealthChecks {
		if old, ok := before.HealthChecks[name]; !ok || old != h {
			health[name] = &h
		}
	}
	if !reflect.DeepEqual(health, changes.HealthChecks) {
		t.Fatalf("step %d: health checks change by %v, want %v", step, changes.HealthChecks, health)
	}
	b, a := normal(before), normal(after)
	node := !reflect.DeepEqual(b.Node, a.Node) || !reflect.DeepEqual(b.Detector, a.Detector) || !reflect.DeepEqual(b.ServiceCIDRs, a.ServiceCIDRs) ||
		!reflect.DeepEqual(b.Skipped, a.Skipped)
	if node != changes.Node {
		t.Fatalf("step %d: Changes.Node is %v, want %v", step, changes.Node, node)
	}
}

// TestEndpointStatesAgree checks on random objects that the states are those of the model, and that each says why not
// exactly where the endpoint is not in force.
func TestEndpointStatesAgree(t *testing.T) {
	w := &world{rand.New(rand.NewPCG(nightly.Seed(t), 7)), map[Ref]Change{}}
	tr := NewTracker(Options{NodeName: "n1"})
	seen := 0
	for step := 0; seen < nightly.Count(1000, 50_000); step++ {
		if step == 1_000_000 {
			t.Fatalf("only %d endpoints were seen", seen)
		}
		tr.Apply([]Change{w.mutate()})
		m, _ := tr.Flush()
		for name, port := range m.Ports {
			var cluster, local []Endpoint
			for _, e := range tr.EndpointStates(name) {
				seen++
				if e.InCluster != (e.Why == "") || e.InLocal != (e.WhyLocal == "") {
					t.Fatalf("%s: %+v", name, e)
				}
				if e.InCluster {
					cluster = append(cluster, Endpoint{Addr: e.Addr, Local: e.Local, Unplaced: e.Node == ""})
				}
				if e.InLocal {
					local = append(local, Endpoint{Addr: e.Addr, Local: e.Local, Unplaced: e.Node == ""})
				}
			}
			if !slices.Equal(cluster, port.ClusterEndpoints) || !slices.Equal(local, port.LocalEndpoints) {
				t.Fatalf("%s: states give %v and %v, the model has %v and %v", name, cluster, local, port.ClusterEndpoints, port.LocalEndpoints)
			}
		}
	}
	if tr.EndpointStates(PortName{}) != nil {
		t.Error("a port that does not exist has endpoints")
	}
}
