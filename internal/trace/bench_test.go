package trace

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// BenchmarkExplain is what a question costs the agent's loop with 10,000 Services of 10 endpoints.
func BenchmarkExplain(b *testing.B) {
	t := k8s.NewTracker(k8s.Options{NodeName: "node-1"})
	name, port, node := "", int32(8080), "node-2"
	for i := range 10000 {
		ip, n := fmt.Sprintf("40.0.%d.%d", i/250, 1+i%250), fmt.Sprint("s", i)
		t.SetService(&v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: n},
			Spec:       v1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Port: 80}}},
		}, k8s.Origin{})
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: n, Labels: map[string]string{discoveryv1.LabelServiceName: n}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		}
		for j := range 10 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", j, i/250, 1+i%250)}, NodeName: &node})
		}
		t.SetEndpointSlice(s, k8s.Origin{})
	}
	m, _ := t.Flush()
	q := Question{From: netip.MustParseAddrPort("203.0.113.9:0"), To: netip.MustParseAddrPort("40.0.39.7:81"), Protocol: "TCP"}
	for b.Loop() {
		if r := Explain(Cluster{Tracker: t, Model: m}, q); r.Verdict != Reject {
			b.Fatal(r.Steps)
		}
	}
}
