package k8s

import (
	"cmp"
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Object is an API object that the model is computed from: *v1.Service, *discoveryv1.EndpointSlice, *v1.Node
// or *networkingv1.ServiceCIDR. A caller must not change an Object after it was passed to this package.
type Object = metav1.Object

// Kind is the kind of an Object, as its manifest spells it.
type Kind string

// The kinds that the model is made of.
const (
	KindService       Kind = "Service"
	KindEndpointSlice Kind = "EndpointSlice"
	KindNode          Kind = "Node"
	KindServiceCIDR   Kind = "ServiceCIDR"
)

// New returns an empty object of the kind; nil if it is none of the four.
func (k Kind) New() Object {
	switch k {
	case KindService:
		return &v1.Service{}
	case KindEndpointSlice:
		return &discoveryv1.EndpointSlice{}
	case KindNode:
		return &v1.Node{}
	case KindServiceCIDR:
		return &networkingv1.ServiceCIDR{}
	}
	return nil
}

// Ref names one API object.
type Ref struct {
	Kind      Kind
	Namespace string // "" for Nodes and ServiceCIDRs
	Name      string
}

// RefOf returns the Ref of an object; ok is false if the object is none of the four kinds.
func RefOf(o Object) (ref Ref, ok bool) {
	switch o := o.(type) {
	case *v1.Service:
		return Ref{KindService, o.Namespace, o.Name}, true
	case *discoveryv1.EndpointSlice:
		return Ref{KindEndpointSlice, o.Namespace, o.Name}, true
	case *v1.Node:
		return Ref{KindNode, "", o.Name}, true
	case *networkingv1.ServiceCIDR:
		return Ref{KindServiceCIDR, "", o.Name}, true
	}
	return Ref{}, false
}

// String returns the form that warnings use: "Service default/web", "Node node-1".
func (r Ref) String() string {
	if r.Namespace == "" {
		return string(r.Kind) + " " + r.Name
	}
	return string(r.Kind) + " " + r.Namespace + "/" + r.Name
}

// Compare orders by kind, namespace, name.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(
		cmp.Compare(r.Kind, o.Kind),
		cmp.Compare(r.Namespace, o.Namespace),
		cmp.Compare(r.Name, o.Name),
	)
}

// Origin is where an object was read from. The zero Origin is the API server.
type Origin struct {
	File     string
	Document int // 1-based
	Item     int // 1-based position in a List; 0: the document is the object
}

// String returns "services.yaml, document 3" or "services.yaml, document 3, item 2"; "" for the API server.
func (o Origin) String() string {
	switch {
	case o.File == "":
		return ""
	case o.Document == 0:
		return o.File
	case o.Item == 0:
		return fmt.Sprintf("%s, document %d", o.File, o.Document)
	}
	return fmt.Sprintf("%s, document %d, item %d", o.File, o.Document, o.Item)
}

// Op is the kind of a Change.
type Op uint8

// An object is new or different (Upsert), gone (Delete), or unchanged but for its resourceVersion or its
// place in the manifests (Renew), which changes only Versions and the origin that warnings name.
const (
	Upsert Op = iota
	Delete
	Renew
)

// String returns the operation in one word.
func (o Op) String() string {
	switch o {
	case Upsert:
		return "upsert"
	case Delete:
		return "delete"
	case Renew:
		return "renew"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Change is one change of one object, as a Source reports it.
type Change struct {
	Op     Op
	Ref    Ref
	Object Object // nil for Delete
	Origin Origin // zero for Delete
}

// Matters reports whether the model may differ after the change.
func (c Change) Matters() bool { return c.Op == Upsert || c.Op == Delete }

// Compare orders by the operation, upserts last, then by Ref.
func (c Change) Compare(o Change) int {
	return cmp.Or(-cmp.Compare(c.Op, o.Op), c.Ref.Compare(o.Ref))
}
