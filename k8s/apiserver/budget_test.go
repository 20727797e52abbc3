package apiserver

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nkp-proxy/nkp/k8s"
)

// limited sets a bound for one test.
func limited(t *testing.T, bound *int64, to int64) {
	was := *bound
	t.Cleanup(func() { *bound = was })
	*bound = to
}

// tenantSlice returns a slice of the namespace a-tenant, which comes before all others, of some kilobytes when trimmed.
func tenantSlice(i int) *discoveryv1.EndpointSlice {
	s := apiSlice(fmt.Sprintf("s%03d", i), map[string]string{discoveryv1.LabelServiceName: "s"})
	s.Namespace = "a-tenant"
	e := s.Endpoints[0]
	s.Endpoints = nil
	for j := range 200 {
		e.Addresses = []string{fmt.Sprintf("10.7.%d.%d", i%250, 1+j)}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// One namespace with more slices than nkp keeps takes nothing from the others, in the first list and later, whatever else the server
// sends with each. What is left out is named, also by a command that lists once; nothing is once it fits.
func TestTooManyObjects(t *testing.T) {
	limited(t, &maxKept, 2<<20)
	limited(t, &maxAnswer, 1<<20) // of what is not protobuf
	f := fakeCluster(t)
	for i := range 100 {
		s := tenantSlice(i)
		s.Annotations = map[string]string{"ignored": strings.Repeat("x", 100_000)}
		f.Put(s)
	}
	src := newTestSource(t, Options{Kubeconfig: f.kubeconfig()})
	sink := followAPI(t, src)
	tenants := func() (n int) {
		for ref := range sink.objects {
			if ref.Namespace == "a-tenant" {
				n++
			}
		}
		return n
	}
	says := func(text string) bool {
		return slices.ContainsFunc(sink.problems.Warnings, func(w k8s.Warning) bool { return strings.Contains(w.Text, text) })
	}
	sink.wait(t, "the first state", func() bool {
		return sink.synced == 1 && sink.objects[k8s.Ref{Kind: k8s.KindEndpointSlice, Namespace: "default", Name: "a-1"}] != nil &&
			tenants() > 10 && tenants() < 80 && says("objects of kind EndpointSlice are left out") && says("EndpointSlice a-tenant/s")
	})
	if _, p, err := src.List(t.Context()); err != nil || len(p.Warnings) == 0 || !strings.Contains(p.Warnings[0].Text, "are left out") {
		t.Errorf("listed once: %+v, %v", p, err)
	}
	for i := range 20 {
		f.Put(tenantSlice(200 + i))
	}
	f.Put(apiService("b", nil), apiSlice("b-1", map[string]string{discoveryv1.LabelServiceName: "b"}))
	sink.wait(t, "another namespace's slice", func() bool {
		return sink.objects[k8s.Ref{Kind: k8s.KindEndpointSlice, Namespace: "default", Name: "b-1"}] != nil && tenants() < 80
	})
}

// An object that is larger than any that a server stores is skipped, and said; the others are taken.
func TestTooLargeObject(t *testing.T) {
	limited(t, &maxObject, 1<<20)
	f := fakeCluster(t)
	big := tenantSlice(1)
	big.Annotations = map[string]string{"ignored": strings.Repeat("x", 2<<20)}
	f.Put(big)
	sink := followAPI(t, newTestSource(t, Options{Kubeconfig: f.kubeconfig()}))
	sink.waitNames(t, first)
	sink.wait(t, "a warning", func() bool {
		return len(sink.problems.Warnings) == 1 && strings.Contains(sink.problems.Warnings[0].Text, "1 objects of kind EndpointSlice are left out")
	})
}

// The bound holds for all pages of a list together. A new list begins anew.
func TestPagesShareTheBudget(t *testing.T) {
	limited(t, &maxKept, 1<<20)
	r := resourceOf(k8s.KindEndpointSlice)
	page := func(from int) []byte {
		list := &discoveryv1.EndpointSliceList{}
		for i := range 10 {
			list.Items = append(list.Items, *tenantSlice(from + i))
		}
		other := apiSlice("z-1", nil)
		other.Namespace = fmt.Sprint("other-", from)
		list.Items = append(list.Items, *other)
		return encodeAs(t, runtime.ContentTypeProtobuf, list)
	}
	items, others := 0, 0
	for i := range 10 {
		list, err := r.decodeList(bytes.NewReader(page(10 * i)))
		if err != nil {
			t.Fatal(err)
		}
		items += len(list.Items)
		for _, o := range list.Items {
			if ref, _ := refOf(o); ref.Namespace != "a-tenant" {
				others++
			}
		}
	}
	if r.kept.over() || items > 60 || others != 10 || r.kept.left.number != 110-items {
		t.Errorf("%d objects of 110 are kept, %d of other namespaces, %d are left out; %d bytes", items, others, r.kept.left.number, r.kept.total)
	}
}
