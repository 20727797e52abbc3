package fallback

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
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
}

// lister lists the rules of a chain of table nat with counters; nothing if there is no such chain.
type lister func(chain string) ([]string, error)

// Counters returns the number of connections of every Service port since its rules were installed, from the counters of these
// rules. Packets and bytes are nil; note explains why. The result is shared and must not be changed.
func (p *Plane) Counters(ctx context.Context) (counters map[k8s.PortName]k8s.Counters, note string, err error) {
	counters, err = p.counters(ctx)
	return counters, bytesNote, err
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
	m, _ := p.snapshot()
	if m == nil {
		return nil, nil
	}
	p.mu.Lock()
	backend := p.status.Backend
	var families []k8s.Family
	for f := range p.families {
		families = append(families, f)
	}
	p.mu.Unlock()
	all := map[k8s.PortName]k8s.Counters{}
	if backend == "" {
		return all, nil // nothing is installed yet
	}
	for _, f := range families {
		list, err := listNAT(ctx, backend, f)
		if err != nil {
			return nil, err
		}
		opened, err := connections(list)
		if err != nil {
			return nil, err
		}
		for n := range m.Ports {
			if n.Family == f {
				all[n] = k8s.Counters{Connections: opened[rules.PortHash(n)]}
			}
		}
	}
	p.counted.at, p.counted.last = time.Now(), all
	return all, nil
}

// connections adds up the connections of a family by the hash of the Service port.
func connections(list lister) (map[string]uint64, error) {
	opened := map[string]uint64{}
	firewalls := map[string]bool{}
	add := func(chain string) error {
		lines, err := list(chain)
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
