package k8s_test

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// The versions of a Service and its slices are those that came last, also those that change nothing else; and then nothing is
// computed again.
func TestVersions(t *testing.T) {
	name := k8s.ServiceName{Namespace: "default", Name: "1web"}
	tr := k8s.NewTracker(k8s.Options{SkipServices: []k8s.ServiceName{{Namespace: "default", Name: "left"}}})
	service := func(of, version string) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of, ResourceVersion: version},
			Spec: v1.ServiceSpec{ClusterIP: "40.0.0.1", Ports: []v1.ServicePort{{Port: 80}}}}
	}
	slice := func(of, version string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of, ResourceVersion: version,
			Labels: map[string]string{discoveryv1.LabelServiceName: name.Name}}}
	}
	apply := func(op k8s.Op, o k8s.Object) {
		ref, _ := k8s.RefOf(o)
		tr.Apply([]k8s.Change{{Op: op, Ref: ref, Object: o}})
	}
	expect := func(service string, slices map[string]string) {
		t.Helper()
		v, ok := tr.VersionsOf(name)
		if v.Service != service || !maps.Equal(v.EndpointSlices, slices) || ok != (service != "" || len(slices) > 0) {
			t.Errorf("%+v, %v; want %s, %v", v, ok, service, slices)
		}
	}

	expect("", nil)
	apply(k8s.Upsert, slice("a", "3"))
	expect("", map[string]string{"a": "3"})
	apply(k8s.Upsert, service(name.Name, "4"))
	apply(k8s.Upsert, slice("b", "5"))
	tr.Flush()
	apply(k8s.Renew, slice("a", "6"))
	apply(k8s.Renew, service(name.Name, "7"))
	apply(k8s.Renew, slice("gone", "8"))
	expect("7", map[string]string{"a": "6", "b": "5"})
	if _, changes := tr.Flush(); len(changes.Ports) > 0 {
		t.Errorf("%+v", changes)
	}
	apply(k8s.Delete, slice("a", ""))
	apply(k8s.Delete, slice("b", ""))
	expect("7", nil)
	apply(k8s.Delete, service(name.Name, ""))
	tr.Flush()
	expect("", nil)

	apply(k8s.Upsert, service("left", "9"))
	if why, final := tr.Unserved(k8s.ServiceName{Namespace: "default", Name: "left"}); why == "" || !final {
		t.Error("a Service that is left to another program counts as served")
	}
}
