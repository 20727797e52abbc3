package fallback

import (
	"context"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// countersAge is how long a result is reused, because listing the rules of ten thousand Services takes a while.
const countersAge = time.Second

// Counters returns the number of connections of every Service port since its rules were installed, from the counters of these
// rules. Where packets and bytes are nil, note explains why. The result is shared and must not be changed.
func (p *Plane) Counters(ctx context.Context) (counters map[k8s.PortName]k8s.Counters, note string, err error) {
	if _, backend := p.Options(); backend == "" {
		return map[k8s.PortName]k8s.Counters{}, p.kernel.Uncounted(), nil // nothing is installed yet
	}
	counters, err = p.counted.Get(ctx, func() (map[k8s.PortName]k8s.Counters, error) { return p.counters(ctx) })
	return counters, p.kernel.Uncounted(), err
}

// counters lists the rules. One call is made at a time.
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
	p.drops.Count(dropped, func(n k8s.PortName) bool { return m.Ports[n] != nil })
	p.drops.AddTo(all)
	node := p.drops.Node()
	p.dropped.Store(&node)
	return all, nil
}

// Dropped returns the packets that the rules have dropped or refused, by reason, when Counters last listed them. The result must
// not be changed.
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
}

// NodeCounters lists two chains, not the rules of all Services. A result is reused for nodeCountersAge, because each takes several
// runs of iptables. If these take longer than ctx, they go on, and the result is the last one, or the last error. The first call waits
// until they end, for nodeCountersLimit at most.
func (p *Plane) NodeCounters(ctx context.Context) (NodeCounters, error) {
	return p.node.get(ctx, p.nodeCounters)
}

const (
	// nodeCountersAge is how long NodeCounters reuses a result.
	nodeCountersAge = 5 * time.Second
	// nodeCountersLimit is half of Prometheus's default scrape_timeout.
	nodeCountersLimit = 5 * time.Second
)

// nodeCounterCache holds the last result of NodeCounters.
type nodeCounterCache struct {
	mu      sync.Mutex // protects what follows
	at      time.Time  // of last; zero: there is none
	last    NodeCounters
	err     error
	listing chan struct{} // closed when a list is complete; nil: none is made
}

func (c *nodeCounterCache) get(ctx context.Context, list func(context.Context) (NodeCounters, error)) (NodeCounters, error) {
	c.mu.Lock()
	if time.Since(c.at) < nodeCountersAge {
		defer c.mu.Unlock()
		return c.last, nil
	}
	if c.listing == nil {
		c.listing = make(chan struct{})
		go c.fill(list, c.listing) // ends within nodeCountersLimit
	}
	listing, enough := c.listing, ctx.Done()
	if c.at.IsZero() && c.err == nil {
		enough = nil
	}
	c.mu.Unlock()
	select {
	case <-listing:
	case <-enough:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.err
}

// fill records what list returns and closes done.
func (c *nodeCounterCache) fill(list func(context.Context) (NodeCounters, error), done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), nodeCountersLimit)
	defer cancel()
	n, err := list(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.last, c.err, c.listing = time.Now(), n, err, nil
	if err != nil {
		c.at = time.Time{}
	}
	close(done)
}

func (p *Plane) nodeCounters(ctx context.Context) (n NodeCounters, err error) {
	o, backend := p.Options()
	if backend == "" {
		return n, nil // nothing is installed yet
	}
	return p.kernel.CountNode(ctx, o, backend)
}
