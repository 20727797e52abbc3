package fallback

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// desired is the desired state of one address family, and which of its items may differ from what is installed. Only the worker's
// goroutine uses it.
type desired struct {
	compiler  *rules.Compiler // nil until the first update
	fixed     rules.Fixed     // chains and rules that do not depend on any Service
	nodeAddrs []netip.Addr    // addresses that serve NodePorts
	items     map[k8s.PortName]item
	dirty     map[k8s.PortName]bool // items that may differ from what is installed
	refused   *dataplane.Refusals[k8s.PortName]
}

// ports returns the Service ports that are to be programmed.
func (d *desired) ports() iter.Seq[*k8s.ServicePort] {
	return func(yield func(*k8s.ServicePort) bool) {
		for _, it := range d.items {
			if it.port != nil && !yield(it.port) {
				return
			}
		}
	}
}

// brief reports whether there are so many endpoints that their rules have no comments.
func (d *desired) brief() bool {
	n := 0
	for _, it := range d.items {
		if it.port != nil {
			n += len(it.port.ClusterEndpoints)
		}
	}
	return n > briefAbove
}

// allDirty marks all wanted and all installed items as dirty.
func (d *desired) allDirty(have *installed) {
	for n := range d.items {
		d.dirty[n] = true
	}
	for n := range have.items {
		d.dirty[n] = true
	}
}

// settled reports whether every dirty item is in backoff, or none is dirty.
func (d *desired) settled() bool {
	now := time.Now()
	for n := range d.dirty {
		if !d.refused.Waits(n, now) {
			return false
		}
	}
	return true
}

// due returns the dirty items that are not in backoff, sorted.
func (d *desired) due() []k8s.PortName {
	now := time.Now()
	names := make([]k8s.PortName, 0, len(d.dirty))
	for n := range d.dirty {
		if !d.refused.Waits(n, now) {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, k8s.PortName.Compare)
	return names
}
