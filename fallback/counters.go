package fallback

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// bytesNote explains why Counters returns no packets and bytes.
const bytesNote = "packets and bytes: n/a: the rules see only the first packet of a connection, and rules that see all would slow down every packet of the node (for live connections: conntrack -L, with net.netfilter.nf_conntrack_acct=1)"

// countersAge is how long a result is reused, because listing the rules of ten thousand Services takes a while.
const countersAge = time.Second

// counterCache holds the last result.
type counterCache struct {
	asks chan struct{} // holds a token while rules are listed, and protects what follows
	at   time.Time
	last map[k8s.PortName]k8s.Counters

	drops dataplane.Drops
}

// lister lists the rules of a chain with counters; nothing if there is no such chain.
type lister func(table rules.Table, chain string) ([]string, error)

// Counters returns the number of connections of every Service port since its rules were installed, from the counters of these
// rules. Where packets and bytes are nil, note explains why. The result is shared and must not be changed.
func (p *Plane) Counters(ctx context.Context) (counters map[k8s.PortName]k8s.Counters, note string, err error) {
	counters, err = p.counters(ctx)
	switch {
	case !p.opts.NFTables:
		note = bytesNote
	case !p.opts.CountTraffic:
		note = "packets and bytes: n/a: they are not counted (--nftables-service-counters)"
	}
	return counters, note, err
}

func (p *Plane) counters(ctx context.Context) (map[k8s.PortName]k8s.Counters, error) {
	select {
	case p.counted.asks <- struct{}{}:
		defer func() { <-p.counted.asks }()
	case <-ctx.Done(): // another call is listing them
		return nil, ctx.Err()
	}
	if time.Since(p.counted.at) < countersAge {
		return p.counted.last, nil
	}
	m, config := p.snapshot()
	if m == nil {
		return nil, nil
	}
	p.mu.Lock()
	backend := p.status.Backend
	families := slices.Collect(maps.Keys(p.families))
	p.mu.Unlock()
	all := map[k8s.PortName]k8s.Counters{}
	if backend == "" {
		return all, nil // nothing is installed yet
	}
	dropped := map[dataplane.DropKey]uint64{}
	if p.opts.NFTables {
		if err := countNFT(m, p.opts.nftConfig(config), families, all, dropped); err != nil {
			return nil, err
		}
		families = nil
	}
	for _, f := range families {
		list, err := listRules(ctx, backend, f)
		if err != nil {
			return nil, err
		}
		opened, err := connections(list)
		if err != nil {
			return nil, err
		}
		names := map[[2]string]k8s.PortName{}
		for n := range m.Ports {
			if n.Family == f {
				all[n] = k8s.Counters{Connections: opened[serving.PortHash(n)]}
				names[[2]string{n.String(), serving.Protocol(n)}] = n
			}
		}
		if err := drops(list, names, dropped); err != nil {
			return nil, err
		}
	}
	p.counted.drops.Count(dropped, func(n k8s.PortName) bool { return m.Ports[n] != nil })
	p.counted.drops.AddTo(all)
	node := p.counted.drops.Node()
	p.dropped.Store(&node)
	p.counted.at, p.counted.last = time.Now(), all
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

// drops adds the packets that the rules of a family drop or refuse to sum. names are the Service ports by name and protocol.
func drops(list lister, names map[[2]string]k8s.PortName, sum map[dataplane.DropKey]uint64) error {
	for _, chain := range rules.DropChains {
		lines, err := list(rules.Filter, chain)
		if err != nil {
			return err
		}
		for _, l := range lines {
			d, ok := rules.ParseDrop(l)
			name, known := names[[2]string{d.Port, d.Proto}]
			if ok && (known || d.Port == "") { // else the Service has just gone
				sum[dataplane.DropKey{Port: name, Reason: d.Reason}] += d.Packets
			}
		}
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
	p.mu.Lock()
	backend, families := p.status.Backend, slices.Collect(maps.Keys(p.families))
	p.mu.Unlock()
	if backend == "" || p.opts.NFTables {
		return n, nil
	}
	add := func(to **uint64, packets uint64) {
		if *to == nil {
			*to = new(uint64)
		}
		**to += packets
	}
	for _, f := range families {
		list, err := listRules(ctx, backend, f)
		if err != nil {
			return n, err
		}
		lines, err := list(rules.Filter, rules.Forward)
		if err != nil {
			return n, err
		}
		for _, l := range lines {
			if d, ok := rules.ParseDrop(l); ok && d.Reason == k8s.DropInvalid {
				add(&n.Invalid, d.Packets)
			}
		}
		if f != k8s.IPv4 || !p.opts.LocalhostNodePorts {
			continue
		}
		if lines, err = list(rules.NAT, rules.Postrouting); err != nil {
			return n, err
		}
		for _, l := range lines {
			if packets, ok := rules.ParseLocalhost(l); ok {
				add(&n.Localhost, packets)
			}
		}
	}
	return n, nil
}

// connections adds up the connections of a family by the hash of the Service port.
func connections(list lister) (map[string]uint64, error) {
	opened := map[string]uint64{}
	firewalls := map[string]bool{}
	add := func(chain string) error {
		lines, err := list(rules.NAT, chain)
		for _, l := range lines {
			switch e, ok := rules.ParseEntry(l); {
			case !ok:
			case e.Firewall != "":
				firewalls[e.Firewall] = true
			default:
				opened[e.Hash] += e.Packets
			}
		}
		return err
	}
	for _, chain := range rules.EntryChains {
		if err := add(chain); err != nil {
			return nil, err
		}
	}
	for chain := range firewalls {
		if err := add(chain); err != nil {
			return nil, err
		}
	}
	return opened, nil
}
