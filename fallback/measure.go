package fallback

import (
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// Restore is what Hooks are told of one run of iptables-restore.
type Restore struct {
	Backend string // nf_tables or legacy
	Family  k8s.Family
	Table   string
	Rules   int // added or deleted
	Took    time.Duration
	Err     error // why nothing of it is in force; nil: all of it is
}

// Round is what Hooks are told of one look at the changes that went through and wrote something.
type Round struct {
	Family k8s.Family
	Full   bool          // the rules were read back, or all of them came anew
	Took   time.Duration // with all its transactions
}
