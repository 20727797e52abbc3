package k8s

// Counters are what a data plane has counted of one Service port's traffic, since it first programmed the port. They only
// grow, unless another program deletes the counting flow or rule.
type Counters struct {
	// Connections are those opened, once each.
	Connections uint64 `json:"connections"`
	// Packets and Bytes are of all connections, bytes those of IP packets, headers included. Nil: not counted.
	Packets *Directions `json:"packets"`
	Bytes   *Directions `json:"bytes"`
}

// Directions are In, from clients to endpoints, and Out, from endpoints to clients.
type Directions struct {
	In  uint64 `json:"in"`
	Out uint64 `json:"out"`
}
