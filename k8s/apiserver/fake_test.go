package apiserver

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/apifake"
	"github.com/nkp-proxy/nkp/test/wait"
)

// fakeAPI is an API server that can be stopped, and started again at the same address.
type fakeAPI struct {
	*apifake.Server
	t       *testing.T
	handler http.Handler // Server, unless a test puts another one before it
	addr    string
	stop    func() // ends all connections
}

func newFakeAPI(t *testing.T) *fakeAPI {
	s := apifake.New()
	f := &fakeAPI{Server: s, t: t, handler: s, addr: "127.0.0.1:0"}
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

func (f *fakeAPI) start() {
	f.t.Helper()
	l, err := net.Listen("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	server := &http.Server{Handler: f.handler}
	f.addr, f.stop = l.Addr().String(), func() {
		l.Close() // also before Serve has it
		server.Close()
	}
	go server.Serve(l) // ends with stop
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

// deny makes requests for a kind fail with an HTTP status.
func (f *fakeAPI) deny(kind k8s.Kind, code int32, reason metav1.StatusReason) {
	f.Refuse(kind, apifake.Status(code, reason, "fake says "+string(reason)))
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
