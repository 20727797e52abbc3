package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

// hostileAPI is a good API server until it turns on those who ask for Services.
type hostileAPI struct {
	*fakeAPI
	mu   sync.Mutex       // protects turn
	turn http.HandlerFunc // nil: good
}

func (h *hostileAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	turn := h.turn
	h.mu.Unlock()
	if turn != nil && strings.HasSuffix(r.URL.Path, "/services") {
		turn(w, r)
		return
	}
	h.Server.ServeHTTP(w, r)
}

// become ends all connections, changes the server's mind and listens again.
func (h *hostileAPI) become(turn http.HandlerFunc) {
	h.t.Helper()
	h.stop()
	h.mu.Lock()
	h.turn = turn
	h.mu.Unlock()
	h.start()
}

// endless writes a list of Services without end.
func endless(item func(i int) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if _, err := io.WriteString(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`); err != nil {
			return
		}
		for i := 0; ; i++ {
			if _, err := io.WriteString(w, item(i)); err != nil {
				return
			}
		}
	}
}

// asProtobuf says of an answer what it is not.
type asProtobuf struct{ http.ResponseWriter }

func (a asProtobuf) Write(b []byte) (int, error) {
	a.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	return a.ResponseWriter.Write(b)
}

// endlessProtobuf writes a list of Services without end.
func endlessProtobuf(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	of, _ := (&k8sruntime.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}).Marshal()
	item, _ := apiService("s", nil).Marshal()
	field := func(number byte, size uint64) []byte {
		return binary.AppendUvarint([]byte{number<<3 | wireLength}, size)
	}
	answer := slices.Concat([]byte(protobufPrefix), field(envelopeType, uint64(len(of))), of, field(envelopeRaw, 1<<50))
	items := bytes.Repeat(slices.Concat(field(listItem, uint64(len(item))), item), 100)
	for err := error(nil); err == nil; answer = items {
		_, err = w.Write(answer)
	}
}

func says(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		io.WriteString(w, body)
	}
}

// Whatever an API server answers that has lost its mind or its master: what was good stays in force, the error is said, memory
// stays bounded, and when it is good again its state is taken up.
func TestHostileAPIServer(t *testing.T) {
	limited(t, &maxAnswer, 8<<20)
	limited(t, &maxList, 64<<20)
	limited(t, &maxKept, 64<<20)
	big := strings.Repeat("x", 1_500_000)
	for _, tc := range []struct {
		name string
		turn http.HandlerFunc
		want string // in the problem; "": the answer can be lived with
	}{
		{"not JSON", says("application/json", "<html>log in here</html>"), "invalid character"},
		{"HTML", says("text/html", "<html>log in here</html>"), ""},
		{"empty", says("application/json", ""), ""},
		{"cut off", says("application/json", `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"na`), ""},
		{"another kind", says("application/json", `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"s"}}]}`), ""},
		{"wrong types", says("application/json", `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":7},"spec":{"ports":"none"}}]}`), "cannot unmarshal"},
		{"broken protobuf", says("application/vnd.kubernetes.protobuf", "k8s\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), ""},
		{"protobuf of noise", says("application/vnd.kubernetes.protobuf", "k8s\x00"+strings.Repeat("\xff\x00\x12", 1000)), ""},
		{"a list without end", endless(func(i int) string { return fmt.Sprintf(`{"metadata":{"name":"s%d"}},`, i) }), "longer than 8 MiB"},
		{"a list without end, said to be protobuf", func(w http.ResponseWriter, r *http.Request) {
			endless(func(i int) string { return fmt.Sprintf(`{"metadata":{"name":"s%d"}},`, i) })(asProtobuf{w}, r)
		}, "longer than 8 MiB"},
		{"protobuf without end", endlessProtobuf, "longer than 64 MiB"},
		{"a name without end", endless(func(i int) string {
			if i == 0 {
				return `{"metadata":{"name":"`
			}
			return big
		}), "longer than 8 MiB"},
		{"nesting without end", endless(func(int) string { return strings.Repeat(`[`, 10_000) }), ""},
		{"pages without end", func(w http.ResponseWriter, r *http.Request) {
			says("application/json", fmt.Sprintf(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"more"},"items":[{"metadata":{"name":"s%d","annotations":{"a":%q}}}]}`,
				time.Now().UnixNano(), big))(w, r)
		}, "longer than 64 MiB"},
		{"all answers are redirects", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) }, ""},
		{"odd status", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(299); io.WriteString(w, big) }, ""},
		{"long errors", func(w http.ResponseWriter, r *http.Request) { http.Error(w, big, http.StatusInternalServerError) }, ""},
		{"a watch of garbage", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				says("application/json", `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"type":"ADDED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"x","namespace":"default"},"spec":{"clusterIP":7}}}`+"\n{\"type\":\"NONSENSE\",\"object\":{}}\nnull\n\x00")
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := fakeCluster(t)
			h := &hostileAPI{fakeAPI: f}
			f.handler = h
			h.become(nil)
			sink := followAPI(t, newTestSource(t, Options{Master: f.url(), QPS: 1000, Burst: 1000}))
			sink.waitNames(t, first)

			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var asked atomic.Int64
			h.become(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				tc.turn(w, r)
			})
			said := ""
			wait.NoError(t, "the answer is taken", func() error {
				runtime.ReadMemStats(&after)
				if after.HeapAlloc > before.HeapAlloc+500<<20 {
					t.Fatalf("the heap grew from %d MiB to %d", before.HeapAlloc>>20, after.HeapAlloc>>20)
				}
				sink.mu.Lock()
				for _, e := range sink.problems.Errors {
					if len(e.String()) > 2000 {
						t.Fatalf("an error of %d bytes: %.300s", len(e.String()), e)
					}
					said += e.String() + "\n"
				}
				sink.mu.Unlock()
				if n := asked.Load(); n < 2 || !strings.Contains(said, tc.want) { // who asks again has read the answer
					return fmt.Errorf("asked %d times; no error says %q:\n%.3000s", n, tc.want, said)
				}
				return nil
			})
			if names := sink.names(); tc.name != "a watch of garbage" && tc.name != "another kind" && names != first {
				t.Errorf("in force is %q, before it was %q", names, first)
			}
			h.become(nil)
			f.Put(apiService("b", nil))
			sink.waitNames(t, strings.Replace(first, "Service default/a", "Service default/a Service default/b", 1))
		})
	}
}

// Objects as large as the API server lets them be are taken.
func TestLargeObjects(t *testing.T) {
	f := newFakeAPI(t)
	s := apiSlice("a-1", map[string]string{discoveryv1.LabelServiceName: "a"})
	s.Endpoints = nil
	for i := range 1000 {
		e := apiSlice("", nil).Endpoints[0]
		e.Addresses = []string{fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)}
		s.Endpoints = append(s.Endpoints, e)
	}
	s.Annotations = map[string]string{"a": strings.Repeat("x", 1_300_000)}
	if data, _ := json.Marshal(s); !bytes.Contains(data, []byte("10.1.3.250")) || len(data) < 1_400_000 {
		t.Fatal(len(data))
	}
	f.Put(apiService("a", nil), s, apiNode("node-1"), apiCIDR())
	sink := followAPI(t, newTestSource(t, Options{Kubeconfig: f.kubeconfig()}))
	sink.waitNames(t, first)
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for ref, o := range sink.objects {
		if ref.Kind == k8s.KindEndpointSlice && len(o.(*discoveryv1.EndpointSlice).Endpoints) != 1000 {
			t.Errorf("%d endpoints", len(o.(*discoveryv1.EndpointSlice).Endpoints))
		}
	}
}
