package k8s

// Counters are a data plane's counts of one Service port's traffic since it first programmed the port. They
// only grow, unless another program deletes the counting flow or rule.
type Counters struct {
	// Connections counts opened connections, each once.
	Connections uint64 `json:"connections"`
	// Packets and Bytes cover all connections. Bytes include IP headers. Nil: not counted.
	Packets *Directions `json:"packets"`
	Bytes   *Directions `json:"bytes"`
	// Dropped counts packets that were dropped or refused. Reasons without packets are absent.
	Dropped map[DropReason]uint64 `json:"dropped,omitempty"`
}

// DropReason is why packets to Services are dropped or refused.
type DropReason string

// The reasons. The first four count for a Service port, the others for the node.
const (
	DropNoEndpoint DropReason = "no_endpoint" // refused: the frontend has no endpoint
	// policy Local, and the endpoints are on other nodes
	DropNoLocalEndpoint DropReason = "no_local_endpoint"
	DropSourceRange     DropReason = "source_range" // loadBalancerSourceRanges
	// reset: an unknown connection to a Service with AnnotationRemovedEndpoints
	DropRemovedEndpoint DropReason = "removed_endpoint"
	// refused: the ClusterIP's Services do not have the port
	DropUnservedPort DropReason = "unserved_port"
	DropUnallocated  DropReason = "unallocated_address" // no Service has the address of a Service range
	DropHairpin      DropReason = "hairpin_address"     // a new connection to a hairpin address
	DropNoPort       DropReason = "no_masquerade_port"  // no source port is left for masquerading
	DropRateLimit    DropReason = "refusal_rate_limit"  // refused without an answer: the meter's limit
	DropInvalid      DropReason = "conntrack_invalid"   // conntrack state INVALID
)

// Text returns what happened to the packets, and why.
func (r DropReason) Text() string {
	switch r {
	case DropNoEndpoint:
		return "refused, no endpoint"
	case DropNoLocalEndpoint:
		return "dropped, policy Local without an endpoint on this node"
	case DropSourceRange:
		return "dropped, outside loadBalancerSourceRanges"
	case DropRemovedEndpoint:
		return "reset, the connection's endpoint was removed"
	}
	return string(r)
}

// ServiceDropReasons are the reasons that count for a Service port.
var ServiceDropReasons = []DropReason{
	DropNoEndpoint, DropNoLocalEndpoint, DropSourceRange, DropRemovedEndpoint,
}

// Directions are In, from clients to endpoints, and Out, from endpoints to clients.
type Directions struct {
	In  uint64 `json:"in"`
	Out uint64 `json:"out"`
}
