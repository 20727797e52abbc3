package shapes

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// NodeName is the node of the local endpoints of [Hostile.Objects].
const NodeName = "n1"

// Hostile describes a Service by the numbers whose products it may be meant to make large.
type Hostile struct {
	Namespace, Name                         string
	Ports, Addresses, LoadBalancers, Ranges int
	Endpoints, Local                        int
	UDP, IPv4, IPv6, NodePorts              bool
	Affinity, ExternalLocal, InternalLocal  bool
	Consistent, Weighted, Closes            bool
	NodeAddress                             bool          // one more external IP, the node's
	Age                                     time.Duration // before 2026
}

// RandomHostile draws a Service of up to most ports, addresses and so on.
func RandomHostile(r *rand.Rand, most int) Hostile {
	n := func() int { return r.IntN(1 + r.IntN(most)) }
	yes := func() bool { return r.IntN(4) == 0 }
	h := Hostile{
		Namespace: fmt.Sprint("ns-", r.IntN(3)), Name: fmt.Sprint("hostile-", r.IntN(1000)),
		Ports: 1 + n()/4, Addresses: n(), LoadBalancers: n(), Ranges: n(), Endpoints: n(), UDP: yes(), IPv4: !yes(), IPv6: yes(),
		NodePorts: yes(), Affinity: yes(), ExternalLocal: yes(), InternalLocal: yes(), Consistent: yes(), Weighted: yes(), Closes: yes(),
		NodeAddress: yes(),
	}
	h.IPv4 = h.IPv4 || !h.IPv6
	h.Local = r.IntN(1 + h.Endpoints)
	return h
}

// address returns an address that no other kind and number has; no two are in one /24 or /64.
func address(six bool, kind, i int) string {
	if six {
		return netip.AddrFrom16([16]byte{0xfd, byte(kind), 1, byte(i >> 16), 0, 0, byte(i >> 8), byte(i), 15: 1}).String()
	}
	return netip.AddrFrom4([4]byte{byte(kind), byte(i >> 8), byte(i), 1 + byte(i>>16)}).String()
}

// number returns a number by which the ClusterIP differs from other Services'.
func (h *Hostile) number() int {
	sum := fnv.New32a()
	sum.Write([]byte(h.Namespace + "/" + h.Name))
	return int(sum.Sum32() & (1<<22 - 1))
}

// weights returns the annotation: weights of the first endpoints, which depend on the name alone, and 0 for one in eight.
func (h *Hostile) weights() string {
	r := rand.New(rand.NewPCG(uint64(h.number()), 1))
	var list []string
	for i := range min(h.Endpoints, 1+r.IntN(300)) {
		weight := 1 + r.IntN(1+r.IntN(k8s.MaxWeight))
		if i%8 == 7 {
			weight = 0
		}
		list = append(list, fmt.Sprintf("%s=%d", address(h.IPv6 && !h.IPv4, 10, i), weight))
	}
	return strings.Join(list, ",")
}

// Objects returns the Service and its EndpointSlices, of up to 1,000 endpoints each.
func (h *Hostile) Objects() (list []k8s.Change) {
	meta := metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name, Annotations: map[string]string{},
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-h.Age))}
	svc := &v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "None"}}
	set := func(yes bool, do func()) {
		if yes {
			do()
		}
	}
	set(h.Consistent, func() { svc.Annotations[k8s.AnnotationConsistent] = "true" })
	set(h.Closes, func() { svc.Annotations[k8s.AnnotationRemovedEndpoints] = "close" })
	set(h.Weighted, func() { svc.Annotations[k8s.AnnotationWeights] = h.weights() })
	set(h.Affinity, func() { svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP })
	set(h.ExternalLocal, func() { svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal })
	local := v1.ServiceInternalTrafficPolicyLocal
	set(h.InternalLocal, func() { svc.Spec.InternalTrafficPolicy = &local })
	protocol := v1.ProtocolTCP
	set(h.UDP, func() { protocol = v1.ProtocolUDP })
	slicePorts := []discoveryv1.EndpointPort{}
	for i := range h.Ports {
		name, target := fmt.Sprint("p", i), int32(8000+i)
		port := v1.ServicePort{Name: name, Protocol: protocol, Port: int32(1 + i)}
		set(h.NodePorts || h.Consistent, func() { port.NodePort = int32(30000 + i) })
		svc.Spec.Ports = append(svc.Spec.Ports, port)
		slicePorts = append(slicePorts, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &target})
	}
	for i := range h.Ranges {
		svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, address(false, 100, i)+"/32", address(true, 100, i)+"/128")
	}
	for _, six := range []bool{false, true} {
		if six && !h.IPv6 || !six && !h.IPv4 {
			continue
		}
		family, addressType := v1.IPv4Protocol, discoveryv1.AddressTypeIPv4
		set(six, func() { family, addressType = v1.IPv6Protocol, discoveryv1.AddressTypeIPv6 })
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, family)
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, address(six, 40, h.number()))
		svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
		for i := range h.Addresses {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, address(six, 50, i))
		}
		set(h.NodeAddress, func() {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, map[bool]string{false: "172.16.0.2", true: "fd00:ac::2"}[six])
		})
		for i := range h.LoadBalancers {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: address(six, 60, i)})
		}
		var slice *discoveryv1.EndpointSlice
		for i := range h.Endpoints {
			if i%1000 == 0 {
				name := fmt.Sprintf("%s-%s-%d", h.Name, addressType, i)
				slice = &discoveryv1.EndpointSlice{AddressType: addressType, Ports: slicePorts, ObjectMeta: metav1.ObjectMeta{
					Namespace: h.Namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: h.Name}}}
				list = append(list, k8s.Change{Op: k8s.Upsert, Ref: k8s.Ref{Kind: k8s.KindEndpointSlice, Namespace: h.Namespace, Name: name}, Object: slice})
			}
			node := "other"
			set(i < h.Local, func() { node = NodeName })
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address(six, 10, i)}, NodeName: &node})
		}
	}
	return append(list, k8s.Change{Op: k8s.Upsert, Ref: k8s.Ref{Kind: k8s.KindService, Namespace: h.Namespace, Name: h.Name}, Object: svc})
}

// Tracker returns a tracker of a dual-stack node that holds these Services.
func Tracker(opts k8s.Options, services ...Hostile) *k8s.Tracker {
	opts.NodeName = NodeName
	opts.NodeIPs = Model().Node.IPs
	if opts.DetectLocal.Mode == "" {
		opts.DetectLocal = k8s.DetectLocal{Mode: k8s.DetectByClusterCIDR, CIDRs: podRanges()}
	}
	t := k8s.NewTracker(opts)
	for i := range services {
		t.Apply(services[i].Objects())
	}
	return t
}

// podRanges are a range of pods of each family.
func podRanges() []netip.Prefix { return Prefixes("10.0.0.0/8", "fd0a::/16") }

// CheckCost checks a data plane's cost of random Service ports against what it makes of them: at least as much, and no more than twice
// as much and a few. The model itself has the frontends.
func CheckCost(t *testing.T, r *rand.Rand, cases int, cost func(*k8s.Size) int, made func(*k8s.Model, *k8s.ServicePort) int) {
	t.Helper()
	const few = 16
	for range cases {
		h := RandomHostile(r, 400)
		h.Ports = 1
		h.IPv6 = !h.IPv4
		computed, pods := 0, podRanges()
		for i := range r.IntN(4) / 3 * r.IntN(20) { // beside one of each family
			pods = append(pods, Prefixes(fmt.Sprintf("11.%d.0.0/16", i), fmt.Sprintf("fd0b:%x::/32", i))...)
		}
		tracker := Tracker(k8s.Options{
			DetectLocal: k8s.DetectLocal{Mode: k8s.DetectByClusterCIDR, CIDRs: pods},
			Cost: func(z *k8s.Size) int {
				computed = cost(z)
				return computed
			},
		}, h)
		m, _ := tracker.Flush()
		for _, sp := range m.Ports {
			if n := max(made(m, sp), len(sp.Frontends)); computed < n || computed > 2*n+few {
				t.Errorf("cost %d, but %d are made with %d ranges of pods of %+v",
					computed, n, len(pods)/2, h)
			}
		}
		if len(m.Ports) != 1 {
			t.Fatalf("%d ports: %v", len(m.Ports), m.Warnings)
		}
	}
}
