package dataplane

import "time"

// Record is what the status of a plane says of its read-backs and failures.
type Record struct {
	// Compared is when all was last read back and compared; Audits is how often since the start. iptables and
	// nftables count those that found everything as nkp had installed it, and unset Compared at a repair.
	Compared time.Time `json:"compared,omitzero"`
	Audits   int       `json:"audits"`
	Repairs  int       `json:"repairs"` // how often another program had changed what nkp installed
	// LastRepair is the last such change; nil: there was none. It is not changed once it is set.
	LastRepair  *Repair   `json:"lastRepair,omitempty"`
	LastError   string    `json:"lastError,omitempty"` // "" once everything is in force again
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
}

// Audited records that all was read back and compared.
func (r *Record) Audited() { r.Compared, r.Audits = time.Now(), r.Audits+1 }

// Failed records an error.
func (r *Record) Failed(err error) { r.LastError, r.LastErrorAt = err.Error(), time.Now() }

// Recovered records that everything is in force again.
func (r *Record) Recovered() { r.LastError, r.LastErrorAt = "", time.Time{} }

// Repairing records what another program changed.
func (r *Record) Repairing(what string) {
	r.Repairs++
	r.LastRepair = &Repair{At: time.Now(), What: "another program had changed " + what}
}
