package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/nkp-proxy/nkp/k8s"
)

// BenchmarkListCosts measures what the first lists cost with the list reader, with client-go's typed lists, and with WatchList
// streaming (docs/decisions/0017-lists-item-by-item.md). It takes minutes.
//
// Each measurement has a process of its own, which follows Services and EndpointSlices and feeds a Tracker, as nkp does. The
// server is in the test's process and sends what it has encoded before.
func BenchmarkListCosts(t *testing.B) {
	for _, services := range []int{10_000, 50_000} {
		server := httptest.NewServer(costlyServer(t, services))
		t.Logf("%d Services", services)
		for range 3 {
			for _, mode := range []string{"reader", "typed", "stream"} {
				child := exec.Command(os.Args[0], "-test.run=^$")
				child.Env = append(os.Environ(), "NKP_LIST_MODE="+mode, "NKP_LIST_URL="+server.URL)
				out, err := child.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", mode, err, out)
				}
				for line := range strings.Lines(string(out)) {
					if _, result, ok := strings.Cut(line, "RESULT "); ok {
						t.Logf("%-6s %s", mode, strings.TrimSpace(result))
					}
				}
			}
		}
		server.Close()
	}
}

// TestMain runs the tests, or is one measurement of BenchmarkListCosts.
func TestMain(m *testing.M) {
	mode := os.Getenv("NKP_LIST_MODE")
	if mode == "" {
		os.Exit(m.Run())
	}
	if err := measureLists(mode); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measureLists(mode string) error {
	start := time.Now()
	s, err := NewSource(Options{Master: os.Getenv("NKP_LIST_URL"), NodeName: "node-1"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sink := &trackerSink{Tracker: k8s.NewTracker(k8s.Options{NodeName: "node-1"}), done: make(chan struct{})}
	to := &relay{health: s.health, sink: sink}
	var work sync.WaitGroup
	listed := map[k8s.Kind]<-chan struct{}{}
	for i := range s.resources[:2] {
		r := &s.resources[i]
		store := newStore(to, func(int) {})
		listed[r.kind] = store.listed
		reflector := cache.NewReflectorWithOptions(r.costly(s, mode), r.kind.New(), store, cache.ReflectorOptions{Name: string(r.kind)})
		work.Go(func() { followAlways(ctx, reflector) })
	}
	for _, l := range listed {
		<-l
	}
	to.synced()
	<-sink.done
	took := time.Since(start)
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return err
	}
	peak, err := highWater()
	if err != nil {
		return err
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	fmt.Printf("RESULT synced after %.2f s, %.2f s of CPU time, peak resident %d MiB, live heap %d MiB, allocated %d MiB, ports %d\n",
		took.Seconds(), cpu.Seconds(), peak>>10, m.HeapAlloc>>20, m.TotalAlloc>>20, sink.ports)
	cancel()
	work.Wait()
	return nil
}

// costly returns what a reflector needs to list in one of the ways that are compared.
func (r *resource) costly(s *Source, mode string) cache.ListerWatcher {
	if mode == "reader" {
		return r.listWatch(s.health)
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
			o.LabelSelector, o.FieldSelector = r.labels, r.fields
			if r.kind == k8s.KindService {
				list, err := s.client.CoreV1().Services("").List(ctx, o)
				for i := range list.Items {
					trim(&list.Items[i])
				}
				return list, err
			}
			list, err := s.client.DiscoveryV1().EndpointSlices("").List(ctx, o)
			for i := range list.Items {
				trim(&list.Items[i])
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = r.labels, r.fields
			return r.watch(ctx, o)
		},
	}
	if mode == "stream" {
		return lw
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, notStreamed{})
}

// highWater returns the most memory that this process had resident, in KiB.
func highWater() (kib int, err error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kib, _ = strconv.Atoi(strings.Fields(v)[0])
		}
	}
	return kib, nil
}

// trackerSink feeds a Tracker.
type trackerSink struct {
	*k8s.Tracker
	ports int
	done  chan struct{}
}

func (s *trackerSink) Problems(k8s.Problems) {}

func (s *trackerSink) Synced() {
	m, _ := s.Flush()
	s.ports = len(m.Ports)
	close(s.done)
}

// costlyServer lists and streams Services with one EndpointSlice of 10 endpoints each, as large as controllers write them.
func costlyServer(t *testing.B, services int) http.Handler {
	list := &v1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	slices := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	port, http80, protocol, yes, node := int32(8080), "http", v1.ProtocolTCP, true, ""
	managed := []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`)}}
	single := v1.IPFamilyPolicySingleStack
	for i := range services {
		name := fmt.Sprint("web-", i)
		ip := net.IPv4(10, 96+byte(i>>16), byte(i>>8), byte(i)).String()
		meta := metav1.ObjectMeta{Name: name, Namespace: "default", UID: "9f1c2d3e-0000-4000-8000-000000000000", ResourceVersion: "5",
			Labels: map[string]string{"app": name}, CreationTimestamp: metav1.Unix(1e9, 0), ManagedFields: managed}
		list.Items = append(list.Items, v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, IPFamilyPolicy: &single, Selector: map[string]string{"app": name}, SessionAffinity: v1.ServiceAffinityNone,
			Ports: []v1.ServicePort{{Name: http80, Port: 80, Protocol: protocol}}}})
		meta.Name, meta.GenerateName = name+"-x7k2p", name+"-"
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": name}
		slice := discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http80, Port: &port, Protocol: &protocol}}}
		for j := range 10 {
			node = fmt.Sprint("node-", j)
			on, zone := node, "zone-a"
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{net.IPv4(172, 16+byte(i>>12), byte(i>>4), byte(i<<4|j)).String()}, NodeName: &on, Zone: &zone,
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
				TargetRef:  &v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-7d4b9c6f5-%05d", name, j), UID: "9f1c2d3e-0000-4000-8000-000000000000"}})
		}
		slices.Items = append(slices.Items, slice)
	}
	answers := map[string][]byte{fakePaths[k8s.KindService]: encodeAs(t, apiruntime.ContentTypeProtobuf, list), fakePaths[k8s.KindEndpointSlice]: encodeAs(t, apiruntime.ContentTypeProtobuf, slices)}
	streams := map[string][]byte{}
	var bookmarks = map[string]apiruntime.Object{fakePaths[k8s.KindService]: &v1.Service{}, fakePaths[k8s.KindEndpointSlice]: &discoveryv1.EndpointSlice{}}
	info, _ := apiruntime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), apiruntime.ContentTypeProtobuf)
	for path, items := range map[string]apiruntime.Object{fakePaths[k8s.KindService]: list, fakePaths[k8s.KindEndpointSlice]: slices} {
		var b strings.Builder
		events := streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(&b), scheme.Codecs.WithoutConversion().EncoderForVersion(info.StreamSerializer, nil))
		send := func(typ watch.EventType, o apiruntime.Object) error {
			return events.Encode(&metav1.WatchEvent{Type: string(typ), Object: apiruntime.RawExtension{Raw: encodeAs(t, apiruntime.ContentTypeProtobuf, o)}})
		}
		if err := eachItem(items, func(o apiruntime.Object) error { return send(watch.Added, o) }); err != nil {
			t.Fatal(err)
		}
		end := bookmarks[path].(metav1.Object)
		end.SetResourceVersion("7")
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if err := send(watch.Bookmark, bookmarks[path]); err != nil {
			t.Fatal(err)
		}
		streams[path] = []byte(b.String())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case answers[r.URL.Path] == nil:
			http.NotFound(w, r)
		case q.Get("watch") == "":
			w.Header().Set("Content-Type", apiruntime.ContentTypeProtobuf)
			w.Write(answers[r.URL.Path])
		default:
			w.Header().Set("Content-Type", apiruntime.ContentTypeProtobuf+";stream=watch")
			if q.Get("sendInitialEvents") != "" {
				w.Write(streams[r.URL.Path])
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	})
}

func eachItem(list apiruntime.Object, f func(apiruntime.Object) error) error {
	switch list := list.(type) {
	case *v1.ServiceList:
		for i := range list.Items {
			if err := f(&list.Items[i]); err != nil {
				return err
			}
		}
	case *discoveryv1.EndpointSliceList:
		for i := range list.Items {
			if err := f(&list.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
