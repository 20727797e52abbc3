package apifake

import (
	"net/http"
	"net/url"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/k8s"
)

// answer writes objects of a kind to who asked, encoded as they asked.
type answer struct {
	w      http.ResponseWriter
	kind   schema.GroupVersionKind
	query  url.Values
	codec  runtime.SerializerInfo
	labels labels.Selector
	fields fields.Selector
	done   <-chan struct{} // closed when the client is gone
}

// answerTo sets the answer's type, for lists and watches alike: the first that the client accepts, else JSON.
func answerTo(w http.ResponseWriter, r *http.Request, kind schema.GroupVersionKind) *answer {
	a := &answer{w: w, kind: kind, query: r.URL.Query(), done: r.Context().Done()}
	known := scheme.Codecs.SupportedMediaTypes()
	for name := range strings.SplitSeq(r.Header.Get("Accept")+","+runtime.ContentTypeJSON, ",") {
		name, _, _ = strings.Cut(strings.TrimSpace(name), ";")
		if info, ok := runtime.SerializerInfoForMediaType(known, name); ok && name != "" {
			a.codec = info
			break
		}
	}
	w.Header().Set("Content-Type", a.codec.MediaType)
	var err error
	if a.labels, err = labels.Parse(a.query.Get("labelSelector")); err != nil {
		panic(err)
	}
	if a.fields, err = fields.ParseSelector(a.query.Get("fieldSelector")); err != nil {
		panic(err)
	}
	return a
}

// selects reports whether an object is of the kind that is asked for, and passes the selectors; nil is not.
func (a *answer) selects(o k8s.Object) bool {
	if o == nil || o.(runtime.Object).GetObjectKind().GroupVersionKind() != a.kind {
		return false
	}
	set := fields.Set{"metadata.name": o.GetName()}
	if s, ok := o.(*v1.Service); ok {
		set["spec.clusterIP"] = s.Spec.ClusterIP
	}
	return a.labels.Matches(labels.Set(o.GetLabels())) && a.fields.Matches(set)
}

// write writes an object; it fails if the client is gone.
func (a *answer) write(o runtime.Object) { _ = a.codec.Serializer.Encode(o, a.w) }

// tell sends a change as the selectors let the client see it.
func (a *answer) tell(c change) {
	switch was, is := a.selects(c.before), a.selects(c.after); {
	case was && is:
		a.event(watch.Modified, c.after)
	case is:
		a.event(watch.Added, c.after)
	case was:
		a.event(watch.Deleted, c.before)
	}
}

func (a *answer) event(what watch.EventType, o k8s.Object) {
	raw, err := runtime.Encode(a.codec.Serializer, o.(runtime.Object))
	if err != nil {
		panic(err) // types of Kubernetes always can
	}
	stream := a.codec.StreamSerializer
	event := &metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: raw}}
	_ = stream.Serializer.Encode(event, stream.Framer.NewFrameWriter(a.w)) // it fails if the client is gone
}
