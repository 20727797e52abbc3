//go:build linux

package fallback

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// api is as much of the Kubernetes API as a service proxy reads: lists and watches of objects that only ever change in
// their EndpointSlices. It takes and gives JSON; events are swallowed.
type api struct {
	mu      sync.Mutex // protects all below
	version int
	objects map[string]map[string]json.RawMessage // resource -> namespace/name
	log     []event
	changed chan struct{} // closed and replaced with each event
}

type event struct {
	Type     string          `json:"type"`
	Object   json.RawMessage `json:"object"`
	resource string
	version  int
}

// kinds are the resources by the last word of their paths.
var kinds = map[string]metav1.TypeMeta{
	"services":       {APIVersion: "v1", Kind: "Service"},
	"nodes":          {APIVersion: "v1", Kind: "Node"},
	"endpointslices": {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
	"servicecidrs":   {APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
}

func newAPI() *api {
	a := &api{version: 1, objects: map[string]map[string]json.RawMessage{}, changed: make(chan struct{})}
	for r := range kinds {
		a.objects[r] = map[string]json.RawMessage{}
	}
	return a
}

func (a *api) service(s v1.Service) { a.put("services", &s.ObjectMeta, &s.TypeMeta, &s) }
func (a *api) node(n v1.Node)       { a.put("nodes", &n.ObjectMeta, &n.TypeMeta, &n) }
func (a *api) slice(s discoveryv1.EndpointSlice) {
	a.put("endpointslices", &s.ObjectMeta, &s.TypeMeta, &s)
}

// put adds or replaces an object; watchers hear of it.
func (a *api) put(resource string, meta *metav1.ObjectMeta, kind *metav1.TypeMeta, o any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	meta.ResourceVersion, *kind = strconv.Itoa(a.version), kinds[resource]
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // types of Kubernetes always can
	}
	key, what := meta.Namespace+"/"+meta.Name, "ADDED"
	if _, ok := a.objects[resource][key]; ok {
		what = "MODIFIED"
	}
	a.objects[resource][key] = text
	a.log = append(a.log, event{what, text, resource, a.version})
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	last := path[len(path)-1]
	kind, ok := kinds[last]
	switch {
	case r.Method != http.MethodGet:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"swallowed","namespace":"default"}}`)
	case ok && r.URL.Query().Get("watch") != "":
		a.watch(w, r, last, kind)
	case ok:
		a.list(w, last, kind)
	default:
		a.mu.Lock()
		o, ok := a.objects["nodes"]["/"+last]
		a.mu.Unlock()
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			o = json.RawMessage(`{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
		}
		_, _ = w.Write(o)
	}
}

func (a *api) list(w http.ResponseWriter, resource string, kind metav1.TypeMeta) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []json.RawMessage{}
	for _, o := range a.objects[resource] {
		items = append(items, o)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": kind.APIVersion, "kind": kind.Kind + "List", "metadata": map[string]string{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

// watch sends what happened after the version that the client names, or first, if it asks for that, everything.
func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string, kind metav1.TypeMeta) {
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	out := json.NewEncoder(w)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		a.mu.Lock()
		at = a.version
		for _, o := range a.objects[resource] {
			_ = out.Encode(event{Type: "ADDED", Object: o})
		}
		a.mu.Unlock()
		_ = out.Encode(event{Type: "BOOKMARK", Object: json.RawMessage(fmt.Sprintf(
			`{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`,
			kind.APIVersion, kind.Kind, at))})
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
			_ = out.Encode(news[i])
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
