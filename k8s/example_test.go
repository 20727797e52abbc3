package k8s_test

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// A Tracker takes objects in any order. Flush works out what they mean for this node, and what that changes.
func ExampleTracker() {
	t := k8s.NewTracker(k8s.Options{NodeName: "node-1"})
	t.SetService(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}},
		},
	}, k8s.Origin{})
	t.Flush()

	port, ready, name := int32(8080), true, ""
	t.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.11"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, k8s.Origin{})
	_, changes := t.Flush()
	for name, sp := range changes.Ports {
		for _, f := range sp.Frontends {
			fmt.Println(name, f.Address, f.Port, "->", sp.ClusterEndpoints[0].Addr)
		}
	}
	// Output: default/web 10.96.0.10 80 -> 10.0.0.11:8080
}
