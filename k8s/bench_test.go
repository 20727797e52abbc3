package k8s

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bigTracker returns a tracker without objects, and 10,000 Services with an EndpointSlice of 10 endpoints each.
func bigTracker() (*Tracker, []Change) {
	var changes []Change
	http, port, protocol := "http", int32(8080), v1.ProtocolTCP
	for i := range 10000 {
		name := fmt.Sprint("web-", i)
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-x7k2p", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port, Protocol: &protocol}},
		}
		for j := i * 10; j < i*10+10; j++ {
			node := fmt.Sprint("node-", j%100)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{NodeName: &node,
				Addresses: []string{netip.AddrFrom4([4]byte{172, byte(16 + j>>16), byte(j >> 8), byte(j)}).String()}})
		}
		for _, o := range []Object{slice, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
				Ports: []v1.ServicePort{{Name: http, Port: 80, Protocol: protocol}}},
		}} {
			ref, _ := RefOf(o)
			changes = append(changes, Change{Op: Upsert, Ref: ref, Object: o})
		}
	}
	return NewTracker(Options{NodeName: "node-1"}), changes
}

// BenchmarkInitialFlush computes the model of 10,000 Services.
func BenchmarkInitialFlush(b *testing.B) {
	_, objects := bigTracker()
	for b.Loop() {
		t := NewTracker(Options{NodeName: "node-1"})
		t.Apply(objects)
		if m, _ := t.Flush(); len(m.Ports) != 10000 {
			b.Fatal(len(m.Ports))
		}
	}
}

// BenchmarkOneEndpoint changes one endpoint among 10,000 Services.
func BenchmarkOneEndpoint(b *testing.B) {
	t, objects := bigTracker()
	t.Apply(objects)
	t.Flush()
	var slice *discoveryv1.EndpointSlice
	for _, c := range objects {
		if s, ok := c.Object.(*discoveryv1.EndpointSlice); ok {
			slice = s.DeepCopy()
			break
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		slice.Endpoints[0].Addresses = []string{fmt.Sprintf("172.31.0.%d", 1+i%2)}
		t.SetEndpointSlice(slice, Origin{})
		if _, c := t.Flush(); len(c.Ports) != 1 {
			b.Fatal(len(c.Ports))
		}
	}
}
