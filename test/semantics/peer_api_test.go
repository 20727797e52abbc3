//go:build linux

package semantics

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// apiServer is as much of the Kubernetes API as kube-proxy reads: lists and watches of Services, EndpointSlices, Nodes
// and ServiceCIDRs, from memory, without selectors but kube-proxy's own (selected). Events are swallowed.
type apiServer struct {
	mu      sync.Mutex // protects all below
	version int
	sets    int                        // how often set was called
	objects map[string]json.RawMessage // kind/namespace/name
	log     []watchEvent
	changed chan struct{} // closed and replaced whenever log grows
}

type watchEvent struct {
	Type    string          `json:"type"`
	Object  json.RawMessage `json:"object"`
	kind    string
	version int
}

type objectMeta struct {
	Name, Namespace string
	Labels          map[string]string
}

func newAPIServer() *apiServer {
	return &apiServer{objects: map[string]json.RawMessage{}, changed: make(chan struct{})}
}

// kinds are the resources by the last element of their paths.
var kinds = map[string]struct{ kind, version string }{
	"services":       {"Service", "v1"},
	"nodes":          {"Node", "v1"},
	"endpointslices": {"EndpointSlice", "discovery.k8s.io/v1"},
	"servicecidrs":   {"ServiceCIDR", "networking.k8s.io/v1"},
}

// marker is the name that the newest objects carry.
func (a *apiServer) marker() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprint("g", a.sets)
}

// next is the name of the marker that goes with the next set.
func (a *apiServer) next() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprint("g", a.sets+1)
}

// set replaces all objects; watchers hear of what differs, in the order of items.
func (a *apiServer) set(items []any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sets++
	seen := map[string]bool{}
	for _, item := range items {
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		var o struct {
			Kind     string
			Metadata objectMeta
			Spec     json.RawMessage
		}
		if err := json.Unmarshal(text, &o); err != nil {
			return err
		}
		if !selected(o.Metadata, o.Spec) {
			continue
		}
		key := o.Kind + "/" + o.Metadata.Namespace + "/" + o.Metadata.Name
		seen[key] = true
		old, known := a.objects[key]
		if known && withoutVersion(old) == string(text) {
			continue
		}
		what := "ADDED"
		if known {
			what = "MODIFIED"
		}
		a.version++
		a.objects[key] = withVersion(text, a.version)
		a.log = append(a.log, watchEvent{what, a.objects[key], o.Kind, a.version})
	}
	for key, old := range a.objects {
		if !seen[key] {
			a.version++
			kind, _, _ := strings.Cut(key, "/")
			a.log = append(a.log, watchEvent{"DELETED", withVersion([]byte(withoutVersion(old)), a.version), kind, a.version})
			delete(a.objects, key)
		}
	}
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}

// withVersion puts a resourceVersion first into the metadata, where withoutVersion finds it.
func withVersion(text []byte, version int) json.RawMessage {
	return json.RawMessage(strings.Replace(string(text), `"metadata":{`, fmt.Sprintf(`"metadata":{"resourceVersion":"%d",`, version), 1))
}

func withoutVersion(text json.RawMessage) string {
	before, after, _ := strings.Cut(string(text), `"resourceVersion":"`)
	_, after, _ = strings.Cut(after, `",`)
	return before + after
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	last := path[len(path)-1]
	if r.Method != http.MethodGet {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"swallowed","namespace":"default"}}`)
		return
	}
	if resource, ok := kinds[last]; ok {
		if r.URL.Query().Get("watch") != "" {
			a.watch(w, r, resource.kind)
			return
		}
		a.list(w, resource.kind, resource.version)
		return
	}
	a.mu.Lock()
	o, ok := a.objects["Node//"+last]
	a.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
		return
	}
	w.Write(o)
}

func (a *apiServer) list(w http.ResponseWriter, kind, version string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []json.RawMessage{}
	for key, o := range a.objects {
		if strings.HasPrefix(key, kind+"/") {
			items = append(items, o)
		}
	}
	json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": version, "kind": kind + "List", "metadata": map[string]string{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

// watch sends what happened after the version that the client names, or first, if it asks for that, everything.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, kind string) {
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	out := json.NewEncoder(w)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		a.mu.Lock()
		at = a.version
		for key, o := range a.objects {
			if strings.HasPrefix(key, kind+"/") {
				out.Encode(watchEvent{Type: "ADDED", Object: o})
			}
		}
		a.mu.Unlock()
		var version string
		for _, k := range kinds {
			if k.kind == kind {
				version = k.version
			}
		}
		out.Encode(watchEvent{Type: "BOOKMARK", Object: json.RawMessage(fmt.Sprintf(
			`{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`, version, kind, at))})
	}
	for {
		a.mu.Lock()
		for _, e := range a.log {
			if e.version > at && e.kind == kind {
				out.Encode(e)
			}
		}
		at = a.version
		changed := a.changed
		a.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
