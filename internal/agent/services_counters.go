package agent

import (
	"context"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// counted is what a data plane has counted, and what is to be said about it.
type counted struct {
	by   map[k8s.PortName]k8s.Counters
	note string
}

// Counters returns the counters of the node's data plane by Service port, and why numbers are missing ("":
// none are). The map is shared: it must not be changed.
func (a *Agent) Counters(ctx context.Context) (by map[k8s.PortName]k8s.Counters, note string, err error) {
	var now planes
	if err := a.ask(ctx, func() { now = a.planes }); err != nil {
		return nil, "", err
	}
	c := now.counters(ctx)
	return c.by, c.note, nil
}

// counters reads the counters of the main data plane; what serves alongside the bridge is not counted.
func (p *planes) counters(ctx context.Context) counted {
	if len(p.all) == 0 {
		return counted{}
	}
	by, note, err := p.all[0].Counters(ctx)
	switch {
	case err != nil:
		return counted{note: "n/a now: " + err.Error()}
	case by != nil && len(p.all) > 1:
		const beside = "the node's own traffic, which nftables or iptables serves beside the bridge, is " +
			"not counted"
		note = strings.TrimPrefix(note+"; "+beside, "; ")
	}
	return counted{by, note}
}

// of returns the counters of one Service port.
func (c *counted) of(n k8s.PortName) (*k8s.Counters, string) {
	if k, ok := c.by[n]; ok {
		return &k, c.note
	}
	if c.by != nil {
		return nil, "n/a: not programmed yet"
	}
	return nil, c.note
}
