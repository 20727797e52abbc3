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

// Restore is one run of iptables-restore, or one transaction with nftables.
type Restore struct {
	Backend string // nf_tables or legacy of iptables, or nftables
	Family  k8s.Family
	Table   string
	Rules   int // added or deleted; with nftables, changes
	Took    time.Duration
	Err     error // why nothing of it is in force; nil: all of it is
}
