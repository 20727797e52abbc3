package apifake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/k8s"
)

// kinds are at these paths.
var kinds = map[string]schema.GroupVersionKind{
	"/api/v1/services": v1.SchemeGroupVersion.WithKind("Service"),
	"/api/v1/nodes":    v1.SchemeGroupVersion.WithKind("Node"),
	"/apis/discovery.k8s.io/v1/endpointslices": discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	"/apis/networking.k8s.io/v1/servicecidrs":  networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
}

// Server is the API server's handler. Its methods may be called from any goroutine.
type Server struct {
	mu      sync.Mutex // protects all below
	version int
	oldest  int                    // watches cannot start before it
	objects map[k8s.Ref]k8s.Object // never written once they are here
	history []change
	news    chan struct{} // closed and replaced with each change
	refused map[k8s.Kind]*metav1.Status
	asked   []*http.Request
}

// change is one of an object. Either side is nil where it does not exist.
type change struct {
	version       int
	before, after k8s.Object
}

// New returns a server without objects.
func New() *Server {
	return &Server{
		version: 100, objects: map[k8s.Ref]k8s.Object{}, news: make(chan struct{}),
		refused: map[k8s.Kind]*metav1.Status{},
	}
}

// Put adds or replaces objects, each with a new version.
func (s *Server) Put(objects ...k8s.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.put(o)
	}
}

func (s *Server) put(o k8s.Object) {
	ref, _ := k8s.RefOf(o)
	s.change(ref, typed(o))
}

// typed returns a copy of an object with its kind.
func typed(o k8s.Object) k8s.Object {
	c := o.(runtime.Object).DeepCopyObject()
	kinds, _, err := scheme.Scheme.ObjectKinds(c)
	if err != nil {
		panic(err) // client-go knows all types of Kubernetes
	}
	c.GetObjectKind().SetGroupVersionKind(kinds[0])
	return c.(k8s.Object)
}

// change makes an object that of a Ref; nil: there is none any more.
func (s *Server) change(ref k8s.Ref, after k8s.Object) {
	s.version++
	s.history = append(s.history, change{s.version, s.objects[ref], after})
	delete(s.objects, ref)
	if after != nil {
		after.SetResourceVersion(strconv.Itoa(s.version))
		s.objects[ref] = after
	}
	close(s.news)
	s.news = make(chan struct{})
}

// Delete takes objects away.
func (s *Server) Delete(objects ...k8s.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		ref, _ := k8s.RefOf(o)
		s.change(ref, nil)
	}
}

// Replace makes these all the objects that there are. Watchers hear of what differs, in this order.
func (s *Server) Replace(objects ...k8s.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stay := map[k8s.Ref]bool{}
	for _, o := range objects {
		ref, _ := k8s.RefOf(o)
		stay[ref] = true
		if old := s.objects[ref]; old != nil {
			same := typed(o)
			same.SetResourceVersion(old.GetResourceVersion())
			if reflect.DeepEqual(old, same) {
				continue
			}
		}
		s.put(o)
	}
	for ref := range s.objects {
		if !stay[ref] {
			s.change(ref, nil)
		}
	}
}

// Compact forgets how the objects came to be as they are.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history, s.oldest = nil, s.version+1
}

// Refuse answers requests for a kind with a status; nil lets them pass.
func (s *Server) Refuse(kind k8s.Kind, status *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[kind] = status
}

// Requests returns what was asked for a kind.
func (s *Server) Requests(kind k8s.Kind) (rs []*http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.asked {
		if kinds[r.URL.Path].Kind == string(kind) {
			rs = append(rs, r)
		}
	}
	return rs
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, known := kinds[r.URL.Path]
	name, _ := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	s.mu.Lock()
	s.asked = append(s.asked, r)
	refused := s.refused[k8s.Kind(kind.Kind)]
	node, isNode := s.objects[k8s.Ref{Kind: k8s.KindNode, Name: name}]
	s.mu.Unlock()
	switch a := answerTo(w, r, kind); {
	case r.Method != http.MethodGet: // an Event
		Answer(w, http.StatusCreated, json.RawMessage(
			`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"swallowed","namespace":"default"}}`))
	case isNode:
		a.write(node.(runtime.Object))
	case !known:
		Answer(w, 404, Status(404, metav1.StatusReasonNotFound, "there is no "+r.URL.Path))
	case refused != nil:
		Answer(w, int(refused.Code), refused)
	case r.URL.Query().Get("watch") != "":
		s.watch(a)
	default:
		s.list(a)
	}
}

// Answer writes an object in JSON.
func Answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // it fails if the client is gone
}

// Status returns a failure as API servers describe it.
func Status(code int32, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}
}

func (s *Server) list(a *answer) {
	list := empty(a.kind.GroupVersion().WithKind(a.kind.Kind + "List"))
	items := []runtime.Object{}
	s.mu.Lock()
	for _, o := range s.objects {
		if a.selects(o) {
			items = append(items, o.(runtime.Object))
		}
	}
	list.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(s.version))
	s.mu.Unlock()
	if err := meta.SetList(list, items); err != nil {
		panic(err) // they are of its type
	}
	a.write(list)
}

// empty returns a new object of a kind.
func empty(kind schema.GroupVersionKind) runtime.Object {
	o, err := scheme.Scheme.New(kind)
	if err != nil {
		panic(fmt.Errorf("%v: %w", kind, err)) // client-go knows all types of Kubernetes
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	return o
}

// watch sends what happened after the version that the client names, and before that all there is, if it asks for
// that.
func (s *Server) watch(a *answer) {
	from, _ := strconv.Atoi(a.query.Get("resourceVersion"))
	s.mu.Lock()
	oldest := s.oldest
	if a.query.Get("sendInitialEvents") == "true" {
		from = s.version
		s.stream(a)
	}
	s.mu.Unlock()
	if from+1 < oldest {
		Answer(a.w, 410, Status(410, metav1.StatusReasonExpired, "too old resource version"))
		return
	}

	for {
		s.mu.Lock()
		news, history := s.news, s.history
		s.mu.Unlock()
		for _, c := range history {
			if c.version > from {
				from = c.version
				a.tell(c)
			}
		}
		a.w.(http.Flusher).Flush()
		select {
		case <-a.done:
			return
		case <-news:
		}
	}
}

// stream sends all objects and the bookmark that ends them.
func (s *Server) stream(a *answer) {
	for _, o := range s.objects {
		if a.selects(o) {
			a.event(watch.Added, o)
		}
	}
	end := empty(a.kind).(k8s.Object)
	end.SetResourceVersion(strconv.Itoa(s.version))
	end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	a.event(watch.Bookmark, end)
}
