package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nkp-proxy/nkp/k8s"
)

// What is passed on is what differs from what was passed on last, by list and by watch.
func TestStore(t *testing.T) {
	sink := &apiSink{}
	var firsts []int
	s := newStore(resourceOf(k8s.KindService), &relay{health: newHealth("u", "node-1"), sink: sink}, func(n int) { firsts = append(firsts, n) })
	object := func(name, version string, port int32) *v1.Service {
		o := apiService(name, nil)
		o.ResourceVersion, o.Spec.Ports[0].Port = version, port
		trim(o)
		return o
	}
	expect := func(want string) {
		t.Helper()
		var got []string
		for _, change := range slices.Concat(sink.batches...) {
			text := change.Op.String() + " " + change.Ref.Name
			if change.Object != nil {
				text += " " + change.Object.GetResourceVersion()
			}
			got = append(got, text)
		}
		sink.batches = nil
		slices.Sort(got)
		if strings.Join(got, ", ") != want {
			t.Errorf("passed on: %s; want: %s", strings.Join(got, ", "), want)
		}
	}
	_ = s.Replace([]any{object("a", "1", 80), object("b", "2", 80), "no object"}, "2")
	expect("upsert a 1, upsert b 2")
	_ = s.Update(object("a", "3", 80)) // only what is trimmed changed
	expect("renew a 3")
	_ = s.Update(object("a", "4", 81))
	expect("upsert a 4")
	_ = s.Add(object("c", "5", 80))
	expect("upsert c 5")
	_ = s.Replace([]any{object("a", "6", 81), object("c", "7", 82), object("d", "8", 80)}, "8") // after a gap in the watch
	expect("delete b, renew a 6, upsert c 7, upsert d 8")
	_ = s.Delete(object("d", "9", 80))
	expect("delete d")
	_ = s.Add(object("d", "10", 80))
	expect("upsert d 10")
	_ = s.Replace(nil, "11")
	expect("delete a, delete c, delete d")
	if fmt.Sprint(firsts) != "[2]" {
		t.Errorf("first list: %v", firsts)
	}
	select {
	case <-s.listed:
	default:
		t.Error("the first list is not told of")
	}
}

// Whatever of a trimmed object differs, its fingerprint does; but for the version.
func TestFingerprint(t *testing.T) {
	s := newStore(nil, nil, nil)
	prints := map[fingerprint]int{}
	for i, change := range []func(*v1.Service){
		func(*v1.Service) {},
		func(o *v1.Service) { o.Name = "b" },
		func(o *v1.Service) { o.Namespace = "b" },
		func(o *v1.Service) { o.UID = "v" },
		func(o *v1.Service) { o.CreationTimestamp = metav1.NewTime(time.Unix(5, 0)) },
		func(o *v1.Service) { o.Labels = map[string]string{k8s.LabelServiceProxyName: ""} },
		func(o *v1.Service) { o.Annotations = map[string]string{v1.AnnotationTopologyMode: "Disabled"} },
		func(o *v1.Service) { o.Spec.Ports[0].Port = 81 },
		func(o *v1.Service) { o.Spec.Ports = append(o.Spec.Ports, v1.ServicePort{}) },
		func(o *v1.Service) { o.Spec.ClusterIP = "40.0.0.2" },
		func(o *v1.Service) { o.Spec.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyLocal) },
		func(o *v1.Service) { o.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "1.2.3.4"}} },
		func(o *v1.Service) { o.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{Hostname: "1.2.3.4"}} },
	} {
		o := apiService("a", nil)
		trim(o)
		change(o)
		o.ResourceVersion = fmt.Sprint(i)
		seen := s.fingerprintOf(o)
		if other, taken := prints[seen]; taken {
			t.Errorf("change %d looks like change %d", i, other)
		}
		prints[seen] = i
		if o.ResourceVersion != fmt.Sprint(i) {
			t.Errorf("the version is lost")
		}
		o.ResourceVersion = "other"
		if s.fingerprintOf(o) != seen {
			t.Error("the version counts")
		}
	}
}
