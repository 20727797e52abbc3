package apiserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

// fakeAPI is a small API server for lists and watches of the four kinds. It knows selectors, resource versions and
// their compaction; it can be stopped and started again at the same address. Like servers before Kubernetes 1.32 it
// does not stream initial lists.
type fakeAPI struct {
	t    *testing.T
	addr string

	mu      sync.Mutex // protects all below
	server  *http.Server
	version int
	oldest  int                               // watches cannot start before it
	objects map[string]map[k8s.Ref]k8s.Object // by path
	history []fakeEvent
	news    chan struct{}             // closed and replaced with each event
	refuse  map[string]*metav1.Status // by path
	asked   []*http.Request
}

type fakeEvent struct {
	version       int
	path          string
	before, after k8s.Object // nil: did not exist, does not exist any more
}

var fakePaths = map[k8s.Kind]string{
	k8s.KindService:       "/api/v1/services",
	k8s.KindNode:          "/api/v1/nodes",
	k8s.KindEndpointSlice: "/apis/discovery.k8s.io/v1/endpointslices",
	k8s.KindServiceCIDR:   "/apis/networking.k8s.io/v1/servicecidrs",
}

func newFakeAPI(t *testing.T) *fakeAPI {
	f := &fakeAPI{t: t, addr: "127.0.0.1:0", version: 100, oldest: 1, objects: map[string]map[k8s.Ref]k8s.Object{},
		news: make(chan struct{}), refuse: map[string]*metav1.Status{}}
	for _, p := range fakePaths {
		f.objects[p] = map[k8s.Ref]k8s.Object{}
	}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fakeAPI) start() {
	f.t.Helper()
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	s := &http.Server{Handler: f}
	f.mu.Lock()
	f.addr, f.server = l.Addr().String(), s
	f.mu.Unlock()
	go s.Serve(l) // ends with stop
}

// stop ends all connections.
func (f *fakeAPI) stop() {
	f.mu.Lock()
	s := f.server
	f.mu.Unlock()
	s.Close()
}

func (f *fakeAPI) url() string { return "http://" + f.addr }

// kubeconfig writes a file that leads here.
func (f *fakeAPI) kubeconfig() string {
	path := filepath.Join(f.t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`, f.url())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *fakeAPI) put(objects ...k8s.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range objects {
		ref, _ := k8s.RefOf(o)
		path := fakePaths[ref.Kind]
		f.version++
		o.SetResourceVersion(strconv.Itoa(f.version))
		f.record(fakeEvent{f.version, path, f.objects[path][ref], o})
		f.objects[path][ref] = o
	}
}

func (f *fakeAPI) remove(o k8s.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ref, _ := k8s.RefOf(o)
	path := fakePaths[ref.Kind]
	f.version++
	f.record(fakeEvent{f.version, path, f.objects[path][ref], nil})
	delete(f.objects[path], ref)
}

func (f *fakeAPI) record(e fakeEvent) {
	f.history = append(f.history, e)
	close(f.news)
	f.news = make(chan struct{})
}

// compact forgets how the objects came to be as they are.
func (f *fakeAPI) compact() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.history, f.oldest = nil, f.version+1
}

// deny makes requests for a kind fail with an HTTP status; 0 lets them pass.
func (f *fakeAPI) deny(kind k8s.Kind, code int32, reason metav1.StatusReason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.refuse, fakePaths[kind])
	if code != 0 {
		f.refuse[fakePaths[kind]] = fakeStatus(code, reason, "fake says "+string(reason))
	}
}

func fakeStatus(code int32, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: code, Reason: reason, Message: message}
}

// requests returns what was asked for a kind.
func (f *fakeAPI) requests(kind k8s.Kind) (rs []*http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.asked {
		if r.URL.Path == fakePaths[kind] {
			rs = append(rs, r)
		}
	}
	return rs
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, r)
	refused := f.refuse[r.URL.Path]
	f.mu.Unlock()
	q := r.URL.Query()
	switch {
	case !slices.Contains(slices.Collect(mapsValues(fakePaths)), r.URL.Path):
		http.NotFound(w, r)
	case refused != nil:
		answer(w, int(refused.Code), refused)
	case q.Get("sendInitialEvents") != "":
		answer(w, http.StatusUnprocessableEntity, fakeStatus(422, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden"))
	case q.Get("watch") != "":
		f.watch(w, r)
	default:
		f.list(w, r)
	}
}

func mapsValues(m map[k8s.Kind]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(body)
}

// matcher returns the request's selectors as a function.
func (f *fakeAPI) matcher(r *http.Request) func(k8s.Object) bool {
	ls, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		panic(err)
	}
	fs, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		panic(err)
	}
	return func(o k8s.Object) bool {
		if o == nil {
			return false
		}
		set := fields.Set{"metadata.name": o.GetName()}
		if s, ok := o.(*v1.Service); ok {
			set["spec.clusterIP"] = s.Spec.ClusterIP
		}
		return ls.Matches(labels.Set(o.GetLabels())) && fs.Matches(set)
	}
}

func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request) {
	match := f.matcher(r)
	f.mu.Lock()
	items := []k8s.Object{}
	for _, o := range f.objects[r.URL.Path] {
		if match(o) {
			items = append(items, o)
		}
	}
	kind, group := "", "v1"
	for k, p := range fakePaths {
		if p == r.URL.Path {
			kind = string(k) + "List"
		}
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/apis/"); ok {
		group = rest[:strings.LastIndexByte(rest, '/')]
	}
	data, err := json.Marshal(map[string]any{"apiVersion": group, "kind": kind, "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(f.version)}})
	f.mu.Unlock()
	if err != nil {
		panic(err)
	}
	answer(w, http.StatusOK, json.RawMessage(data))
}

func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	match := f.matcher(r)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	f.mu.Lock()
	expired := from+1 < f.oldest
	f.mu.Unlock()
	if expired {
		answer(w, http.StatusGone, fakeStatus(410, metav1.StatusReasonExpired, "too old resource version"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := w.(http.Flusher)
	flush.Flush()
	for {
		f.mu.Lock()
		news := f.news
		var out []byte
		for _, e := range f.history {
			if e.version <= from || e.path != r.URL.Path {
				continue
			}
			from = e.version
			event := ""
			object := e.after
			switch was, is := match(e.before), match(e.after); {
			case was && is:
				event = "MODIFIED"
			case is:
				event = "ADDED"
			case was:
				event, object = "DELETED", e.before
			default:
				continue
			}
			ref, _ := k8s.RefOf(object)
			data, err := json.Marshal(object)
			if err != nil {
				panic(err)
			}
			group := "v1"
			if rest, ok := strings.CutPrefix(e.path, "/apis/"); ok {
				group = rest[:strings.LastIndexByte(rest, '/')]
			}
			typed := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s`, group, ref.Kind, data[1:])
			out = fmt.Appendf(out, "{\"type\":%q,\"object\":%s}\n", event, typed)
		}
		f.mu.Unlock()
		w.Write(out)
		flush.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-news:
		}
	}
}

// apiSink is a Sink that remembers.
type apiSink struct {
	mu       sync.Mutex // protects all below
	batches  [][]k8s.Change
	objects  map[k8s.Ref]k8s.Object
	synced   int
	early    int // batches before Synced
	problems k8s.Problems
}

func (r *apiSink) Apply(changes []k8s.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.objects == nil {
		r.objects = map[k8s.Ref]k8s.Object{}
	}
	r.batches = append(r.batches, changes)
	if r.synced == 0 {
		r.early++
	}
	for _, c := range changes {
		if c.Op == k8s.Delete {
			delete(r.objects, c.Ref)
		} else {
			r.objects[c.Ref] = c.Object
		}
	}
}

func (r *apiSink) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced++
}

func (r *apiSink) Problems(p k8s.Problems) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = p
}

// names returns what is in force, "Service default/a Service default/b".
func (r *apiSink) names() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var refs []k8s.Ref
	for ref := range r.objects {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, k8s.Ref.Compare)
	var s []string
	for _, ref := range refs {
		s = append(s, ref.String())
	}
	return strings.Join(s, " ")
}

// wait waits until ok, which is called with the apiSink locked.
func (r *apiSink) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	wait.NoError(t, what, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !ok() {
			return fmt.Errorf("problems %+v, objects %v", r.problems, r.objects)
		}
		return nil
	})
}

func (r *apiSink) waitNames(t *testing.T, want string) {
	t.Helper()
	wait.NoError(t, "what is in force", func() error {
		if got := r.names(); got != want {
			return fmt.Errorf("it is %q, want %q", got, want)
		}
		return nil
	})
}
