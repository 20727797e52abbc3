package k8s

// Counters are a data plane's counts of one Service port's traffic since it first programmed the port. They only
// grow, unless another program deletes the counting flow or rule.
type Counters struct {
	// Connections counts opened connections, each once.
	Connections uint64 `json:"connections"`
	// Packets and Bytes cover all connections. Bytes include IP headers. Nil: not counted.
	Packets *Directions `json:"packets"`
	Bytes   *Directions `json:"bytes"`
}

// Directions are In, from clients to endpoints, and Out, from endpoints to clients.
type Directions struct {
	In  uint64 `json:"in"`
	Out uint64 `json:"out"`
}
