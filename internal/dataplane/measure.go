package dataplane

import (
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// Transaction is one transaction with the switch.
type Transaction struct {
	Flows, Groups int  // set or deleted
	Refused       int  // objects that the switch refused: nothing was installed
	Failed        bool // the connection did not survive it
	Took          time.Duration
}

// Restore is one run of iptables-restore.
type Restore struct {
	Backend string // nf_tables or legacy
	Family  k8s.Family
	Table   string
	Rules   int // added or deleted
	Took    time.Duration
	Err     error // why nothing of it is in force; nil: all of it is
}
