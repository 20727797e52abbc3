package dataplane

import (
	"maps"

	"github.com/nkp-proxy/nkp/k8s"
)

// DropKey names a counter of dropped packets. The Port is zero where the counter is of the node.
type DropKey struct {
	Port   k8s.PortName
	Reason k8s.DropReason
}

// Drops adds up counters of dropped packets. The flows or rules that count come and go with endpoints; the
// sums do not go down. What a flow counts between the last reading and its deletion is lost. The zero value
// is ready. Not safe for concurrent use.
type Drops struct {
	seen, ports map[DropKey]uint64
	own         map[DropKey]uint64 // packets of nkp's own that have yet to be seen
	node        map[k8s.DropReason]uint64
}

// Count takes the counters as they are now, and forgets the Service ports that are not served. left reports
// whether not all counters of a Service port, or of the node, were read this time; nil: all were.
func (d *Drops) Count(now map[DropKey]uint64, left, served func(k8s.PortName) bool) {
	if d.ports == nil {
		d.ports, d.node = map[DropKey]uint64{}, map[k8s.DropReason]uint64{}
	}
	for _, why := range k8s.ServiceDropReasons {
		d.node[why] += 0 // a rate needs a 0 to start at
	}
	for k, n := range now {
		grown := n - min(n, d.seen[k])
		// The flow was made again. A counter of the node is a sum of flows, of which one may be gone.
		if n < d.seen[k] && k.Port != (k8s.PortName{}) {
			grown = n
		}
		if own := min(grown, d.own[k]); own > 0 {
			grown -= own
			d.own[k] -= own
		}
		d.node[k.Reason] += grown
		if grown > 0 && k.Port != (k8s.PortName{}) {
			d.ports[k] += grown
		}
	}
	maps.DeleteFunc(d.ports, func(k DropKey, _ uint64) bool { return !served(k.Port) })
	maps.DeleteFunc(d.own, func(k DropKey, n uint64) bool { return n == 0 || !served(k.Port) })
	for k, n := range d.seen {
		_, read := now[k]
		if !read && left != nil && left(k.Port) && (k.Port == (k8s.PortName{}) || served(k.Port)) {
			now[k] = n
		}
	}
	d.seen = now
}

// Own leaves out a packet of nkp's own that is dropped.
func (d *Drops) Own(k DropKey) {
	if d.own == nil {
		d.own = map[DropKey]uint64{}
	}
	d.own[k]++
}

// Node returns a copy of the sums by reason, of all Service ports that there have been.
func (d *Drops) Node() map[k8s.DropReason]uint64 { return maps.Clone(d.node) }

// AddTo puts the sums of the Service ports in counters into their Counters.
func (d *Drops) AddTo(counters map[k8s.PortName]k8s.Counters) {
	for k, n := range d.ports {
		c, ok := counters[k.Port]
		if !ok {
			continue
		}
		if c.Dropped == nil {
			c.Dropped = map[k8s.DropReason]uint64{}
		}
		c.Dropped[k.Reason] = n
		counters[k.Port] = c
	}
}
