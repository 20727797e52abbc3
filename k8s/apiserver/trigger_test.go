package apiserver

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// A Flush names the trigger of every slice that changed a Service port here, once.
func TestTriggers(t *testing.T) {
	tr := k8s.NewTracker(k8s.Options{NodeName: "n"})
	tr.SetService(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: v1.ServiceSpec{ClusterIP: "40.0.0.1", ClusterIPs: []string{"40.0.0.1"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}}},
	}, k8s.Origin{})
	at := func(sec int) time.Time { return time.Date(2026, 1, 2, 3, 4, sec, 500, time.UTC) }
	set := func(slice, trigger, endpoint string, ready bool) {
		name, port, protocol := "http", int32(8080), v1.ProtocolTCP
		o := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: slice, Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
				Annotations: map[string]string{v1.EndpointsLastChangeTriggerTime: trigger}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{endpoint}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
		trim(o) // as the API server's objects come
		tr.SetEndpointSlice(o, k8s.Origin{})
	}
	expect := func(what string, want ...time.Time) {
		t.Helper()
		_, c := tr.Flush()
		var got []time.Time
		for _, tg := range c.Triggers {
			if tg.Family != k8s.IPv4 {
				t.Errorf("%s: family %v", what, tg.Family)
			}
			got = append(got, tg.At)
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%s: triggers %v, want %v", what, got, want)
		}
	}
	text := func(sec int) string { return at(sec).Format(time.RFC3339Nano) }
	expect("no slice yet")
	set("a", text(1), "10.0.0.1", true)
	set("b", text(2), "10.0.0.2", true)
	expect("two slices", at(1), at(2))
	expect("nothing new")
	set("a", text(3), "10.0.0.1", true)
	expect("an endpoint that is the same")
	set("c", text(4), "10.0.0.3", false)
	expect("an endpoint that is not in force")
	set("c", text(5), "10.0.0.3", true)
	expect("which now is", at(5))
	set("c", "yesterday", "10.0.0.4", true)
	expect("a time that cannot be read")
	set("c", text(6), "10.0.0.5", true)
	tr.DeleteEndpointSlice("ns", "c")
	expect("a slice that came and went")
}
