package fallback

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// Options are those that iptables and nftables both have. DefaultOptions returns usable ones.
type Options struct {
	serving.Config
	// Families are the families to serve. Empty: both, without a family that the kernel lacks.
	Families []k8s.Family
	// SyncPeriod is how often the Plane checks that its rules are still installed.
	SyncPeriod time.Duration
	// MinSyncPeriod is the least time between two transactions; the first after a pause goes at once.
	MinSyncPeriod time.Duration
	Hooks         Hooks
	Log           *slog.Logger
}

// Hooks are called when something happens. Each may be nil.
type Hooks struct {
	dataplane.Hooks
	Restored func(dataplane.Restore) // iptables-restore has run
	// a transaction with changes of Services was refused, and is retried in parts
	Split func(k8s.Family)
}

// DefaultOptions returns kube-proxy's settings; Log must still be set.
func DefaultOptions() Options {
	return Options{Config: serving.DefaultConfig(), SyncPeriod: 30 * time.Second}
}

// ToServe returns the families to serve.
func (o *Options) ToServe() []k8s.Family {
	if len(o.Families) > 0 {
		return o.Families
	}
	return dataplane.Families
}

// Status is the part of the output of `nkp status -o json` that is specific to iptables or nftables.
type Status struct {
	Backend string `json:"backend"` // nf_tables or legacy of iptables, or nftables; "" before Run has chosen
	Reason  string `json:"reason"`  // why that one
	Version string `json:"version"` // of iptables; "": there is none
	Scope   string `json:"scope"`
	// RandomFully reports whether masquerading chooses ports at random.
	RandomFully bool           `json:"randomFully"`
	Families    []FamilyStatus `json:"families"`
}

// FamilyStatus is the state of one address family.
type FamilyStatus struct {
	Family string `json:"family"`
	// InStep reports whether everything is programmed, except refused items.
	InStep   bool      `json:"inStep"`
	LastSync time.Time `json:"lastSync"` // the last committed transaction
	Services int       `json:"services"` // Service ports that are programmed
	Chains   int       `json:"chains"`   // their own chains, in iptables
	Elements int       `json:"elements"` // of sets, in nftables
	// Flowtable is the state of the flowtable; nil: none is wanted.
	Flowtable *Flowtable `json:"flowtable,omitempty"`
	Pending   int        `json:"pending"` // Service ports that are not programmed yet
	// Refused maps each Service port that iptables refused to the reason.
	Refused      map[string]string `json:"refused,omitempty"`
	refusals     []dataplane.Refusal
	closing      string // StaleForgetter.unclosed
	Transactions int    `json:"transactions"`
	Rules        int    `json:"rules"` // written since the start
	Failures     int    `json:"failures"`
	dataplane.Record
	Forgotten int `json:"forgotten"` // stale connections
	// LastForgetError is why stale connections could not be deleted; they are tried again.
	LastForgetError string                `json:"lastForgetError,omitempty"`
	LastTook        time.Duration         `json:"lastTook"` // the last transaction
	Programming     dataplane.Programming `json:"programming"`
}

// Flowtable is the state of a flowtable, the fast path of established connections.
type Flowtable struct {
	Devices int    `json:"devices"`         // that are in it
	LeftOut int    `json:"leftOut"`         // that match and are not in it
	Error   string `json:"error,omitempty"` // why some are left out, or why there is no flowtable
}

// Failed records an error.
func (s *FamilyStatus) Failed(err error) {
	s.Failures++
	s.Record.Failed(err)
}

// Repairing records what another program changed.
func (s *FamilyStatus) Repairing(what string) {
	s.Record.Repairing("the rules: " + what)
	s.Compared = time.Time{}
}

// refuse sets the refused Service ports.
func (s *FamilyStatus) refuse(list []dataplane.Refusal) {
	s.refusals, s.Refused = list, nil
	if len(list) > 0 {
		s.Refused = make(map[string]string, len(list))
	}
	for _, r := range list {
		s.Refused[fmt.Sprintf("%s (%s)", r.Port, r.Port.Protocol)] = r.Reason
	}
}
