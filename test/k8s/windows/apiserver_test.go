//go:build linux

package windows

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/nkp-proxy/nkp/k8s/manifest"
)

// apiServer is as much of a Kubernetes API server as kube-proxy needs: it lists; nothing ever changes.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex // protects objects, whose encoding is not trusted to only read
	objects map[string][]runtime.Object
}

// The collections, by the path they are at.
const (
	services       = "/api/v1/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
	nodes          = "/api/v1/nodes"
	cidrs          = "/apis/networking.k8s.io/v1/servicecidrs"
)

var kinds = map[string]metav1.TypeMeta{
	services:       {Kind: "Service", APIVersion: "v1"},
	endpointSlices: {Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
	nodes:          {Kind: "Node", APIVersion: "v1"},
	cidrs:          {Kind: "ServiceCIDR", APIVersion: "networking.k8s.io/v1"},
}

// newAPIServer serves the objects of manifests on loopback.
func newAPIServer(t *testing.T, path string) *apiServer {
	t.Helper()
	s := &apiServer{objects: map[string][]runtime.Object{}}
	m := manifest.Load(path)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range m.Objects {
		o := c.Object.(runtime.Object).DeepCopyObject()
		at := nodes
		switch o := o.(type) {
		case *v1.Service:
			at, o.ResourceVersion, o.TypeMeta = services, "1", kinds[services]
			corev1.SetObjectDefaults_Service(o)
		case *discoveryv1.EndpointSlice:
			at, o.ResourceVersion, o.TypeMeta = endpointSlices, "1", kinds[endpointSlices]
		case *v1.Node:
			o.ResourceVersion, o.TypeMeta = "1", kinds[nodes]
		}
		s.objects[at] = append(s.objects[at], o)
	}
	s.Server = httptest.NewUnstartedServer(s)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Server.Listener.Close()
	s.Server.Listener = l
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch kind, known := kinds[r.URL.Path]; {
	case r.Method == http.MethodPost: // events
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"e"}}`))
	case known && r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	case known:
		s.list(w, kind, r.URL.Path)
	case strings.HasPrefix(r.URL.Path, nodes+"/"):
		s.node(w, strings.TrimPrefix(r.URL.Path, nodes+"/"))
	default:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func refuse(w http.ResponseWriter, code int, why metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: why, Code: int32(code)})
}

func (s *apiServer) list(w http.ResponseWriter, kind metav1.TypeMeta, at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := s.objects[at]
	if items == nil {
		items = []runtime.Object{}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind.Kind + "List", "apiVersion": kind.APIVersion,
		"metadata": map[string]any{"resourceVersion": "1"}, "items": items})
}

func (s *apiServer) node(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[nodes] {
		if o.(*v1.Node).Name == name {
			_ = json.NewEncoder(w).Encode(o)
			return
		}
	}
	refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
}

// watch holds the line. Streaming lists are refused, as by a server that does not know them.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}
