//go:build linux

package fallback

import (
	"fmt"
	"net/http"
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
	"k8s.io/client-go/kubernetes/scheme"
)

// api is as much of the Kubernetes API as a service proxy reads: lists and watches of objects that only ever change in
// their EndpointSlices. It gives protobuf or JSON, as it is asked; events are swallowed.
type api struct {
	mu      sync.Mutex // protects all below
	version int
	objects map[string]map[string]*object // resource -> namespace/name
	log     []event
	changed chan struct{} // closed and replaced with each event
}

// object is an object with its encodings, so that the proxy that is measured does not wait for them.
type object struct {
	runtime.Object
	json, protobuf []byte
}

type event struct {
	kind     string // ADDED, MODIFIED or BOOKMARK
	object   *object
	resource string
	version  int
}

// kinds are the resources by the last word of their paths, with their lists.
var kinds = map[string]struct {
	metav1.TypeMeta
	list func() runtime.Object
}{
	"services":       {metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, func() runtime.Object { return &v1.ServiceList{} }},
	"nodes":          {metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, func() runtime.Object { return &v1.NodeList{} }},
	"endpointslices": {metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, func() runtime.Object { return &discoveryv1.EndpointSliceList{} }},
	"servicecidrs":   {metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}, func() runtime.Object { return &networkingv1.ServiceCIDRList{} }},
}

func newAPI() *api {
	a := &api{version: 1, objects: map[string]map[string]*object{}, changed: make(chan struct{})}
	for r := range kinds {
		a.objects[r] = map[string]*object{}
	}
	return a
}

func (a *api) service(s v1.Service) { a.put("services", &s.ObjectMeta, &s.TypeMeta, &s) }
func (a *api) node(n v1.Node)       { a.put("nodes", &n.ObjectMeta, &n.TypeMeta, &n) }
func (a *api) slice(s discoveryv1.EndpointSlice) {
	a.put("endpointslices", &s.ObjectMeta, &s.TypeMeta, &s)
}

// put adds or replaces an object; watchers hear of it.
func (a *api) put(resource string, meta *metav1.ObjectMeta, kind *metav1.TypeMeta, o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	meta.ResourceVersion, *kind = strconv.Itoa(a.version), kinds[resource].TypeMeta
	key, what := meta.Namespace+"/"+meta.Name, "ADDED"
	if _, ok := a.objects[resource][key]; ok {
		what = "MODIFIED"
	}
	encoded := encodings(o)
	a.objects[resource][key] = encoded
	a.log = append(a.log, event{what, encoded, resource, a.version})
	close(a.changed)
	a.changed = make(chan struct{})
}

// codec encodes one media type.
type codec struct {
	serializer runtime.Encoder
	stream     *runtime.StreamSerializerInfo
	contents   func(*object) []byte
}

var codecs = func() map[string]codec {
	m := map[string]codec{}
	for _, info := range scheme.Codecs.SupportedMediaTypes() {
		c := codec{info.Serializer, info.StreamSerializer, func(o *object) []byte { return o.json }}
		if info.MediaType == runtime.ContentTypeProtobuf {
			c.contents = func(o *object) []byte { return o.protobuf }
		}
		m[info.MediaType] = c
	}
	return m
}()

// accepted returns the first media type that the client names and we have; else JSON.
func accepted(r *http.Request) (string, codec) {
	for name := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		name, _, _ = strings.Cut(strings.TrimSpace(name), ";")
		if c, ok := codecs[name]; ok {
			return name, c
		}
	}
	return runtime.ContentTypeJSON, codecs[runtime.ContentTypeJSON]
}

func encodings(o runtime.Object) *object {
	encode := func(mediaType string) []byte {
		b, err := runtime.Encode(codecs[mediaType].serializer, o)
		if err != nil {
			panic(err) // types of Kubernetes always can
		}
		return b
	}
	return &object{o, encode(runtime.ContentTypeJSON), encode(runtime.ContentTypeProtobuf)}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mediaType, c := accepted(r)
	w.Header().Set("Content-Type", mediaType)
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	last := path[len(path)-1]
	_, ok := kinds[last]
	switch {
	case r.Method != http.MethodGet:
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"swallowed","namespace":"default"}}`)
	case ok && r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", mediaType+";stream=watch")
		a.watch(w, r, last, c)
	case ok:
		a.list(w, last, c)
	default:
		a.mu.Lock()
		o, ok := a.objects["nodes"]["/"+last]
		a.mu.Unlock()
		if !ok {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		_, _ = w.Write(c.contents(o))
	}
}

func (a *api) list(w http.ResponseWriter, resource string, c codec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := kinds[resource].list()
	items := make([]runtime.Object, 0, len(a.objects[resource]))
	for _, o := range a.objects[resource] {
		items = append(items, o.Object)
	}
	if err := meta.SetList(list, items); err != nil {
		panic(err)
	}
	kind := kinds[resource].TypeMeta
	list.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind+"List"))
	list.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(a.version))
	_ = c.serializer.Encode(list, w)
}

// watch sends what happened after the version that the client names, or first, if it asks for that, everything.
func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string, c codec) {
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	frames := c.stream.Framer.NewFrameWriter(w)
	send := func(e event) {
		_ = c.stream.Serializer.Encode(&metav1.WatchEvent{Type: e.kind, Object: runtime.RawExtension{Raw: c.contents(e.object)}}, frames)
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		a.mu.Lock()
		at = a.version
		for _, o := range a.objects[resource] {
			send(event{kind: "ADDED", object: o})
		}
		a.mu.Unlock()
		send(event{kind: "BOOKMARK", object: bookmark(resource, at)})
	}
	for {
		a.mu.Lock()
		var news []event
		for i := len(a.log); i > 0 && a.log[i-1].version > at; i-- {
			if a.log[i-1].resource == resource {
				news = append(news, a.log[i-1])
			}
		}
		at = a.version
		changed := a.changed
		a.mu.Unlock()
		for i := len(news) - 1; i >= 0; i-- {
			send(news[i])
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// bookmark ends what sendInitialEvents asks for.
func bookmark(resource string, version int) *object {
	kind := kinds[resource].TypeMeta
	o, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind))
	if err != nil {
		panic(err)
	}
	o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind))
	m := o.(metav1.Object)
	m.SetResourceVersion(strconv.Itoa(version))
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return encodings(o)
}
