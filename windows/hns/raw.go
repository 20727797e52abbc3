package hns

import "encoding/json"

// Kind is a kind of object, as the names of the HCN functions spell it.
type Kind string

// The kinds that Raw knows.
const (
	KindNetwork      Kind = "Network"
	KindEndpoint     Kind = "Endpoint"
	KindLoadBalancer Kind = "LoadBalancer"
)

// Raw is an HNS whose objects are JSON as it crosses the API, with all fields. A Host has those that a proxy
// needs. Errors that HNS gave are *Error. A Raw is not safe for concurrent use.
type Raw interface {
	// Version returns HNS's version.
	Version() (Version, error)
	// IDs lists the objects of a kind.
	IDs(k Kind) ([]string, error)
	// Query returns an object.
	Query(k Kind, id string) (json.RawMessage, error)
	// Create creates an object, for an endpoint on the network with the id network, and returns it as HNS
	// stored it.
	Create(k Kind, network string, body []byte) (json.RawMessage, error)
	// Modify changes an object, and returns it as HNS has it afterwards.
	Modify(k Kind, id string, body []byte) (json.RawMessage, error)
	// Delete deletes an object; IsNotFound(err) if there is none.
	Delete(k Kind, id string) error
	// LoadBalancerStates returns the State of every load balancer by id.
	LoadBalancerStates() (map[string]int, error)
}

// IDOf returns the canonical id of an object; "": it has none.
func IDOf(object json.RawMessage) string {
	var o struct{ ID string }
	if json.Unmarshal(object, &o) != nil {
		return ""
	}
	return CanonicalID(o.ID)
}
