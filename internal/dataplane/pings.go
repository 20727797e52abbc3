package dataplane

// Pings counts pings of Services' addresses: those that were answered, and those beyond the limit, which were
// not.
type Pings struct {
	Answered uint64 `json:"answered"`
	Limited  uint64 `json:"limited"`
}
