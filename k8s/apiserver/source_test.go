package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

func apiService(name string, labels map[string]string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "u", Labels: labels,
			Annotations:   map[string]string{"big": "text", v1.AnnotationTopologyMode: "Auto"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}},
		Spec: v1.ServiceSpec{ClusterIP: "40.0.0.1", Selector: map[string]string{"app": name},
			Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}
}

func apiSlice(name string, labels map[string]string) *discoveryv1.EndpointSlice {
	yes, node := true, "node-2"
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1", "10.0.0.2"}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes}, TargetRef: &v1.ObjectReference{Kind: "Pod", Name: "pod", UID: "u"}}},
	}
}

func apiNode(name string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: "z", "other": "x"}},
		Status: v1.NodeStatus{Images: []v1.ContainerImage{{SizeBytes: 1}},
			Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "172.16.0.2"}}},
	}
}

func apiCIDR() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"40.0.0.0/24"}}}
}

func newTestSource(t *testing.T, opts Options) *Source {
	t.Helper()
	if opts.NodeName == "" {
		opts.NodeName = "node-1"
	}
	s, err := NewSource(opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// followAPI runs a source until the test ends.
func followAPI(t *testing.T, s *Source) *apiSink {
	t.Helper()
	r := &apiSink{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r) }() // ends with the context
	t.Cleanup(func() {
		cancel()
		if err := wait.Receive(t, "the end of Run", done); err != nil {
			t.Error(err)
		}
	})
	return r
}

const first = "EndpointSlice default/a-1 Node node-1 Service default/a ServiceCIDR kubernetes"

func fakeCluster(t *testing.T) *fakeAPI {
	f := newFakeAPI(t)
	f.Put(apiService("a", nil), apiSlice("a-1", map[string]string{discoveryv1.LabelServiceName: "a"}), apiNode("node-1"), apiCIDR())
	return f
}

// kube-proxy's selectors, by what comes of them: a label that is put on later is a deletion.
func TestAPISelectors(t *testing.T) {
	for _, proxyName := range []string{"", "nkp"} {
		t.Run("name="+proxyName, func(t *testing.T) {
			f := newFakeAPI(t)
			label := func(v string) map[string]string { return map[string]string{k8s.LabelServiceProxyName: v} }
			headless := apiService("headless", label(proxyName))
			headless.Spec.ClusterIP = v1.ClusterIPNone
			f.Put(apiService("plain", nil), apiService("empty", label("")), apiService("ours", label("nkp")), apiService("theirs", label("x")),
				headless, apiSlice("slice", nil), apiSlice("labelled", label("x")),
				apiSlice("headless", map[string]string{v1.IsHeadlessService: ""}), apiNode("node-1"), apiNode("node-2"))
			r := followAPI(t, newTestSource(t, Options{Kubeconfig: f.kubeconfig(), ServiceProxyName: proxyName}))
			slices := "EndpointSlice default/labelled EndpointSlice default/slice Node node-1"
			mine := map[string]string{"": "plain", "nkp": "ours"}[proxyName]
			r.waitNames(t, slices+" Service default/"+mine)
			f.Put(apiService(mine, label("elsewhere")), apiSlice("slice", map[string]string{v1.IsHeadlessService: ""}))
			r.waitNames(t, "EndpointSlice default/labelled Node node-1")
		})
	}
	if _, err := NewSource(Options{Master: "http://127.0.0.1:1", ServiceProxyName: "no label!"}); err == nil {
		t.Error("a proxy name that cannot be a label is taken")
	}
}

// The sink is told that it has the first complete state after the last list, however long that takes, and not before.
func TestAPIFirstState(t *testing.T) {
	f := fakeCluster(t)
	f.deny(k8s.KindEndpointSlice, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	s := newTestSource(t, Options{Kubeconfig: f.kubeconfig()})
	r := followAPI(t, s)
	r.wait(t, "the refused list is reported", func() bool {
		return len(r.problems.Errors) == 1 && strings.Contains(r.problems.Errors[0].String(), "API server "+f.url()+": cannot list EndpointSlices: fake says")
	})
	r.wait(t, "the other lists", func() bool { return len(r.objects) == 3 })
	if r.synced != 0 || s.Answers() {
		t.Errorf("before the lists are in: synced %d, answers %v", r.synced, s.Answers())
	}
	f.Refuse(k8s.KindEndpointSlice, nil)
	r.wait(t, "synced", func() bool { return r.synced == 1 && r.problems.Empty() })
	if r.names() != first || r.early != len(r.batches) || !s.Answers() {
		t.Errorf("%q in %d batches, %d of them before Synced; answers %v", r.names(), len(r.batches), r.early, s.Answers())
	}
	for _, q := range f.Requests(k8s.KindService) {
		if a := q.Header.Get("Accept"); !strings.HasPrefix(a, "application/vnd.kubernetes.protobuf") {
			t.Errorf("asks for %s", a)
		}
	}
}

// Endpoints share the names of their nodes, and names of nodes that are gone are forgotten.
func TestNodeNamesAreBounded(t *testing.T) {
	slice := func(prefix string, n int) *discoveryv1.EndpointSlice {
		s := apiSlice("a-1", nil)
		s.Endpoints = make([]discoveryv1.Endpoint, n)
		for i := range s.Endpoints {
			name := fmt.Sprint(prefix, i)
			s.Endpoints[i].NodeName = &name
		}
		trim(s)
		return s
	}
	if a, b := slice("node", 2), slice("node", 2); a.Endpoints[1].NodeName != b.Endpoints[1].NodeName {
		t.Error("two endpoints of one node have its name twice")
	}
	for i := range 20 {
		slice(fmt.Sprint("made-up-", i, "-"), 1000)
	}
	slice(strings.Repeat("x", 1000), 1)
	_, long := nodeNames.Get(strings.Repeat("x", 1000) + "0")
	if n := nodeNames.Len(); n > maxInterned || long {
		t.Errorf("%d names are remembered", n)
	}
}

// What is stored is trimmed, and changes of what was trimmed are none.
func TestAPITrim(t *testing.T) {
	f := fakeCluster(t)
	r := followAPI(t, newTestSource(t, Options{Kubeconfig: f.kubeconfig()}))
	r.wait(t, "synced", func() bool { return r.synced == 1 })
	s := r.objects[k8s.Ref{Kind: k8s.KindService, Namespace: "default", Name: "a"}].(*v1.Service)
	if s.ManagedFields != nil || len(s.Annotations) != 1 || s.Annotations[v1.AnnotationTopologyMode] != "Auto" || len(s.Spec.Selector) != 1 || s.Spec.Selector["app"] != "" ||
		s.UID != "u" || s.Spec.ClusterIP != "40.0.0.1" || s.Spec.Ports[0].TargetPort.IntVal != 8080 {
		t.Errorf("%+v", s)
	}
	e := r.objects[k8s.Ref{Kind: k8s.KindEndpointSlice, Namespace: "default", Name: "a-1"}].(*discoveryv1.EndpointSlice).Endpoints[0]
	if len(e.Addresses) != 1 || *e.TargetRef != (v1.ObjectReference{Kind: "Pod", Name: "pod"}) || *e.NodeName != "node-2" || !*e.Conditions.Ready || e.Conditions.Serving != nil {
		t.Errorf("%+v", e)
	}
	n := r.objects[k8s.Ref{Kind: k8s.KindNode, Name: "node-1"}].(*v1.Node)
	if len(n.Labels) != 1 || n.Status.Images != nil || len(n.Status.Addresses) != 1 {
		t.Errorf("%+v", n)
	}
	again := apiService("a", nil)
	again.Annotations["big"] = "other"
	misspelt := apiService("b", nil)
	for i := range 20 {
		misspelt.Annotations[fmt.Sprintf("nkp-proxy.github.io/wieghts-%02d", i)] = strings.Repeat("x", 1000)
	}
	f.Put(again)
	f.Put(apiNode("node-1"))
	f.Put(misspelt)
	r.wait(t, "the real change", func() bool { return len(r.objects) == 5 })
	for _, b := range r.batches[r.early:] {
		for _, c := range b {
			if c.Ref.Name != "b" && c.Matters() {
				t.Errorf("reported as a change: %+v", c)
			}
		}
	}

	// Of annotations that nkp warns about, the names are kept, and not all of them.
	kept := r.objects[k8s.Ref{Kind: k8s.KindService, Namespace: "default", Name: "b"}].(*v1.Service).Annotations
	if last := "nkp-proxy.github.io/wieghts-07"; len(kept) != 1+k8s.MaxUnknownAnnotations || kept[last] != "" || !strings.Contains(fmt.Sprint(kept), last) {
		t.Errorf("annotations %v", kept)
	}
}

// While the server is away everything stays and status can tell; what changed meanwhile is reported
// once it is back, deletions too, whether or not it still knows the resource versions from before.
func TestAPIServerAway(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprintf("compacted=%v", compacted), func(t *testing.T) {
			f := fakeCluster(t)
			f.Put(apiService("stays", nil))
			s := newTestSource(t, Options{Kubeconfig: f.kubeconfig()})
			r := followAPI(t, s)
			r.wait(t, "synced", func() bool { return r.synced == 1 })
			before, batches := r.names(), len(r.batches)
			f.stop()
			r.wait(t, "the outage is reported", func() bool {
				return len(r.problems.Errors) == 1 && strings.Contains(r.problems.Errors[0].String(), "API server "+f.url()+": dial tcp")
			})
			if r.names() != before || s.Answers() || len(r.batches) != batches {
				t.Errorf("while the server is away: %q, answers %v, %d batches", r.names(), s.Answers(), len(r.batches)-batches)
			}
			f.Delete(apiService("a", nil))
			f.Put(apiService("new", nil))
			if compacted {
				f.Compact()
			}
			f.start()
			r.waitNames(t, "EndpointSlice default/a-1 Node node-1 Service default/new Service default/stays ServiceCIDR kubernetes")
			r.wait(t, "nothing is wrong any more", func() bool { return r.problems.Empty() })
			if r.synced != 1 || !s.Answers() {
				t.Errorf("synced %d times, answers %v", r.synced, s.Answers())
			}
			for _, b := range r.batches[batches:] {
				for _, c := range b {
					if c.Ref.Name != "a" && c.Ref.Name != "new" && c.Matters() {
						t.Errorf("did not change, but was reported: %+v", c)
					}
				}
			}
		})
	}
}

// A server that is away at the start is waited for.
func TestAPIServerLate(t *testing.T) {
	f := fakeCluster(t)
	s := newTestSource(t, Options{Master: f.url()})
	f.stop()
	r := followAPI(t, s)
	r.wait(t, "the error", func() bool { return len(r.problems.Errors) == 1 })
	if _, _, err := s.List(t.Context()); err == nil || !strings.Contains(err.Error(), "API server "+f.url()+": dial tcp") {
		t.Errorf("List: %v", err)
	}
	f.start()
	r.wait(t, "synced", func() bool { return r.synced == 1 && r.problems.Empty() })
	if r.names() != first {
		t.Error(r.names())
	}
}

// A Node that does not exist blocks nothing and is a warning until it comes.
func TestAPINoNode(t *testing.T) {
	f := fakeCluster(t)
	r := followAPI(t, newTestSource(t, Options{Kubeconfig: f.kubeconfig(), NodeName: "node-9"}))
	r.wait(t, "synced with a warning", func() bool {
		return r.synced == 1 && len(r.problems.Warnings) == 1 && strings.Contains(r.problems.Warnings[0].String(), "Node node-9: does not exist")
	})
	f.Put(apiNode("node-9"))
	r.wait(t, "no warning", func() bool { return r.problems.Empty() && len(r.objects) == 4 })
	f.Delete(apiNode("node-9"))
	r.wait(t, "the warning again", func() bool { return len(r.problems.Warnings) == 1 && len(r.objects) == 3 })
}

// A server without ServiceCIDRs is in order, and is not asked for them again and again.
func TestAPIWithoutServiceCIDRs(t *testing.T) {
	f := newFakeAPI(t)
	f.Put(apiService("a", nil), apiNode("node-1"))
	f.deny(k8s.KindServiceCIDR, http.StatusNotFound, metav1.StatusReasonNotFound)
	s := newTestSource(t, Options{Kubeconfig: f.kubeconfig()})
	r := followAPI(t, s)
	r.wait(t, "synced", func() bool { return r.synced == 1 })
	r.wait(t, "nothing is wrong", func() bool { return r.problems.Empty() })
	wait.For(t, "a list and a watch", func() bool { return len(f.Requests(k8s.KindServiceCIDR)) >= 2 })
	w, err := s.resources[3].watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if silent, ok := w.(*watch.FakeWatcher); !ok || silent.IsStopped() { // one that ended would be renewed at once
		t.Errorf("the watch is %T, and has ended", w)
	}
	changes, _, err := s.List(t.Context())
	if err != nil || len(changes) != 2 {
		t.Errorf("List: %v, %v", changes, err)
	}
}

// Missing rights are told by kind, and mended without a restart.
func TestAPIForbidden(t *testing.T) {
	f := fakeCluster(t)
	f.deny(k8s.KindService, http.StatusForbidden, metav1.StatusReasonForbidden)
	f.deny(k8s.KindServiceCIDR, http.StatusForbidden, metav1.StatusReasonForbidden)
	s := newTestSource(t, Options{Kubeconfig: f.kubeconfig()})
	r := followAPI(t, s)
	r.wait(t, "an error and a warning", func() bool {
		return len(r.problems.Errors) == 1 && len(r.problems.Warnings) == 1 &&
			strings.Contains(r.problems.Errors[0].Text, "cannot list Services: fake says Forbidden") &&
			strings.Contains(r.problems.Warnings[0].Text, "cannot list ServiceCIDRs: fake says Forbidden")
	})
	if _, _, err := s.List(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot list Services: fake says") {
		t.Errorf("List: %v", err)
	}
	f.Refuse(k8s.KindService, nil)
	f.Refuse(k8s.KindServiceCIDR, nil)
	r.waitNames(t, first)
}

// List returns what Run would report.
func TestAPIList(t *testing.T) {
	f := fakeCluster(t)
	f.Put(apiNode("node-2"), apiService("other", map[string]string{k8s.LabelServiceProxyName: "x"}))
	changes, problems, err := newTestSource(t, Options{Kubeconfig: f.kubeconfig()}).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &apiSink{}
	r.Apply(changes)
	if r.names() != first || !problems.Empty() {
		t.Errorf("%s, %+v", r.names(), problems)
	}
	_, problems, err = newTestSource(t, Options{Kubeconfig: f.kubeconfig(), NodeName: "nobody"}).List(t.Context())
	if err != nil || len(problems.Warnings) != 1 {
		t.Errorf("without the Node: %+v, %v", problems, err)
	}
}

// A source that ends leaves no goroutine behind, whatever the server was doing.
func TestAPINoLeaks(t *testing.T) {
	run := func(f *fakeAPI, up bool) {
		s := newTestSource(t, Options{Kubeconfig: f.kubeconfig()})
		r := &apiSink{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, r) }() // ends with the context
		if up {
			r.wait(t, "synced", func() bool { return r.synced == 1 })
		} else {
			r.wait(t, "the error", func() bool { return len(r.problems.Errors) > 0 })
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	f := fakeCluster(t)
	run(f, true) // what lives as long as the process is there now
	f.stop()
	before, same := 0, 0
	wait.For(t, "goroutines at rest", func() bool {
		n := runtime.NumGoroutine()
		if same++; n != before {
			before, same = n, 0
		}
		return same == 10
	})
	for range 3 {
		run(f, false)
		f.start()
		run(f, true)
		f.stop()
	}
	wait.NoError(t, "the end of all goroutines", func() error {
		if n := runtime.NumGoroutine(); n > before {
			buf := make([]byte, 1<<20)
			return fmt.Errorf("%d goroutines, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
		}
		return nil
	})
}

// Where the configuration comes from, and what is said if it is not there.
func TestAPIConfig(t *testing.T) {
	f := newFakeAPI(t)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := NewSource(Options{}); err == nil || !strings.Contains(err.Error(), "not in a pod") {
		t.Errorf("outside of a pod: %v", err)
	}
	if _, err := NewSource(Options{Kubeconfig: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without the file: %v", err)
	}
	if s := newTestSource(t, Options{Kubeconfig: f.kubeconfig(), Master: "https://other:1"}); s.URL() != "https://other:1" {
		t.Errorf("--master does not override: %s", s.URL())
	}
	if s := newTestSource(t, Options{Kubeconfig: f.kubeconfig()}); s.URL() != f.url() {
		t.Errorf("%s, not %s", s.URL(), f.url())
	}
}

// What nkp reads of a Service's annotations is not trimmed.
func TestOwnAnnotationsAreKept(t *testing.T) {
	s := apiService("a", nil)
	for _, name := range k8s.OwnAnnotations {
		s.Annotations[name] = "x"
	}
	trim(s)
	for _, name := range k8s.OwnAnnotations {
		if s.Annotations[name] != "x" {
			t.Errorf("%s is trimmed", name)
		}
	}
}
