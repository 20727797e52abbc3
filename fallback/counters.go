package fallback

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// countersAge is how long a result is reused, because listing the rules of ten thousand Services takes a
// while.
const countersAge = time.Second

// Counters returns the number of connections of every Service port since its rules were installed, from the
// counters of these rules. Where packets and bytes are nil, note explains why. The result is shared and must
// not be changed.
func (p *Plane) Counters(
	ctx context.Context,
) (counters map[k8s.PortName]k8s.Counters, note string, err error) {
	if _, backend := p.Options(); backend == "" {
		return map[k8s.PortName]k8s.Counters{}, p.kernel.Uncounted(), nil // nothing is installed yet
	}
	counters, err = p.counted.Get(ctx, func() (map[k8s.PortName]k8s.Counters, error) {
		return p.counters(ctx)
	})
	return counters, p.kernel.Uncounted(), err
}

// counters lists the rules: iptables by runs of its programs, nftables by netlink. It changes nothing in the
// kernel. One call is made at a time.
func (p *Plane) counters(ctx context.Context) (map[k8s.PortName]k8s.Counters, error) {
	m, _ := p.snapshot()
	if m == nil {
		return nil, nil
	}
	all, dropped := map[k8s.PortName]k8s.Counters{}, map[dataplane.DropKey]uint64{}
	o, backend := p.Options()
	if err := p.kernel.Count(ctx, m, o, backend, all, dropped); err != nil {
		return nil, err
	}
	p.drops.Count(dropped, nil, func(n k8s.PortName) bool { return m.Ports[n] != nil })
	p.drops.AddTo(all)
	node := p.drops.Node()
	p.dropped.Store(&node)
	return all, nil
}

// List adds what is installed of a Service port, or of all.
func (p *Plane) List(ctx context.Context, of k8s.PortName, to *dataplane.Listing) error {
	o, backend := p.Options()
	m, _ := p.snapshot()
	if backend == "" || m == nil {
		return nil // nothing is installed yet
	}
	if of != (k8s.PortName{}) {
		sp := m.Ports[of]
		m.Ports, o.Canary = map[k8s.PortName]*k8s.ServicePort{}, false
		if sp != nil {
			m.Ports[of] = sp
		}
	}
	return p.kernel.List(ctx, m, o, backend, to)
}

// Dropped returns the packets that the rules have dropped or refused, by reason, when Counters last listed
// them. The result must not be changed.
func (p *Plane) Dropped() map[k8s.DropReason]uint64 {
	if d := p.dropped.Load(); d != nil {
		return *d
	}
	return nil
}

// NodeCounters are what the rules count for the node as a whole, since they were installed.
type NodeCounters struct {
	// Localhost counts connections to NodePorts at loopback addresses; nil: no NodePort is served there.
	Localhost *uint64
	// Invalid counts forwarded packets dropped in conntrack state INVALID; nil: no rule drops them.
	Invalid *uint64
	// Pings counts pings of Services' addresses; nil: none are answered.
	Pings *dataplane.Pings
}

// AddPings adds pings that a rule has counted: limited ones get no answer.
func (n *NodeCounters) AddPings(packets uint64, limited bool) {
	if n.Pings == nil {
		n.Pings = &dataplane.Pings{}
	}
	if limited {
		n.Pings.Limited += packets
	} else {
		n.Pings.Answered += packets
	}
}

// nodeCount is a result of NodeCounters.
type nodeCount struct {
	NodeCounters
	err error
	at  time.Time // zero: it is not reused
}

const (
	// nodeCountersAge is how long NodeCounters reuses a result.
	nodeCountersAge = 5 * time.Second
	// nodeCountersLimit is half of Prometheus's default scrape_timeout.
	nodeCountersLimit = 5 * time.Second
)

// NodeCounters lists few chains, not the rules of all Services: with iptables up to three a family, with
// nftables, which runs no program, those that answer pings. A result is reused for nodeCountersAge, because
// iptables takes a run for each chain. If ctx ends first, the previous result (or error) is returned and the
// listing continues in the background. The first call waits for it, for nodeCountersLimit at most.
func (p *Plane) NodeCounters(ctx context.Context) (NodeCounters, error) {
	o, backend := p.Options()
	last := p.lastNode.Load()
	if backend == "" { // nothing is installed yet
		return NodeCounters{}, nil
	} else if last != nil && time.Since(last.at) < nodeCountersAge {
		return last.NodeCounters, nil
	}

	counted := p.counting.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), nodeCountersLimit)
		defer cancel()
		n := &nodeCount{}
		if n.NodeCounters, n.err = p.kernel.CountNode(ctx, o, backend); n.err == nil {
			n.at = time.Now()
		}
		p.lastNode.Store(n)
		return nil, nil
	})
	enough := ctx.Done()
	if last == nil {
		enough = nil
	}
	select {
	case <-counted:
	case <-enough:
	}
	last = p.lastNode.Load()
	return last.NodeCounters, last.err
}
