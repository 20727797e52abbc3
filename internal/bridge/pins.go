package bridge

import (
	"context"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// The pins of session affinity are flows that packets make, so whoever can forge sources can make them. The switch bounds them for
// each Service port by itself (flow.Learn.Limit). What all of a node's take is bounded here: every CountPeriod nkp looks how
// many there are, and stops learning at --affinity-limit-node until a tenth of them has expired. Nothing here reads pins, and
// nothing counts them one by one while there are many.

// AffinityStatus is how many clients session affinity remembers.
type AffinityStatus struct {
	Clients   int    `json:"clients"`   // pins of all Service ports, at the last count
	Limit     uint32 `json:"limit"`     // of each Service port
	NodeLimit uint32 `json:"nodeLimit"` // of all together
	// Stopped says that NodeLimit was reached: no new client is remembered.
	Stopped bool `json:"stopped"`
	// Full are the Service ports at their limit, sorted. They are not looked for while Stopped.
	Full []string `json:"full"`
}

// pins is what the last count found. It belongs to the loop.
type pins struct {
	count   int
	stopped bool
	full    []k8s.PortName
}

// checkPins counts the pins, and stops or resumes learning.
func (p *Plane) checkPins(ctx context.Context) {
	if p.conn == nil {
		return
	}
	if err := p.countPins(ctx); err != nil && ctx.Err() == nil {
		p.log.Warn("cannot count the clients of session affinity", "error", err)
		p.stats.failed(err)
	}
}

func (p *Plane) countPins(ctx context.Context) error {
	sizes, err := p.conn.TableSizes(ctx)
	if err != nil {
		return err
	}
	stop := p.set.Layout.NoPins()
	there, err := p.conn.FlowCount(ctx, stop.Cookie, ^uint64(0), stop.Table)
	if err != nil {
		return err
	}
	now := pins{count: int(sizes[p.set.Layout.PinTable()])}
	limit := int(p.set.AffinityNodeLimit)
	switch { // what lies between leaves it as it is
	case now.count >= limit:
		now.stopped = true
	case now.count > limit-limit/10:
		now.stopped = there.Flows > 0
	}
	switch {
	case now.stopped && there.Flows == 0:
		p.log.Warn("session affinity stops remembering clients: this node's limit is reached (--affinity-limit-node)", "clients", now.count, "limit", limit)
		_, err = p.conn.Commit(ctx, &flow.Delta{SetFlows: []*flow.Flow{stop}})
	case !now.stopped && there.Flows > 0:
		p.log.Info("session affinity remembers clients again", "clients", now.count, "limit", limit)
		_, err = p.conn.Commit(ctx, &flow.Delta{DelFlows: []*flow.Flow{stop}})
	}
	if err != nil {
		return err
	}
	if !now.stopped && now.count >= int(p.set.AffinityLimit) && p.compiler != nil {
		if now.full, err = p.fullPorts(ctx); err != nil {
			return err
		}
	}
	for _, n := range now.full {
		if !slices.Contains(p.pins.full, n) {
			p.log.Warn("session affinity remembers no further clients of a Service port: its limit is reached (--affinity-limit)", "service", n, "limit", p.set.AffinityLimit)
		}
	}
	p.pins = now
	return nil
}

// fullPorts returns the Service ports that have as many pins as they may, sorted.
func (p *Plane) fullPorts(ctx context.Context) (full []k8s.PortName, err error) {
	owners := p.compiler.PinOwners()
	cookies := make([]uint64, 0, len(owners))
	for c := range owners {
		cookies = append(cookies, c)
	}
	counts, err := p.conn.CookieCounts(ctx, p.set.Layout.PinTable(), cookies)
	if err != nil {
		return nil, err
	}
	for i, n := range counts {
		if n >= uint64(p.set.AffinityLimit) {
			full = append(full, owners[cookies[i]])
		}
	}
	slices.SortFunc(full, k8s.PortName.Compare)
	return full, nil
}

// affinityStatus runs on the loop.
func (p *Plane) affinityStatus() AffinityStatus {
	s := AffinityStatus{Clients: p.pins.count, Limit: p.set.AffinityLimit, NodeLimit: p.set.AffinityNodeLimit, Stopped: p.pins.stopped, Full: []string{}}
	for _, n := range p.pins.full {
		s.Full = append(s.Full, n.String())
	}
	return s
}

// warnings say what is not remembered, a line each.
func (s *AffinityStatus) warnings() (out []string) {
	const instead = "further clients get an endpoint by the hash of their address, and keep it while the endpoints stay the same"
	if s.Stopped {
		out = append(out, fmt.Sprintf("session affinity remembers %d clients on this node, at most %d (--affinity-limit-node): %s", s.Clients, s.NodeLimit, instead))
	}
	if len(s.Full) > 0 {
		out = append(out, fmt.Sprintf("session affinity remembers %d clients, the limit of a Service port (--affinity-limit), for %s: %s", s.Limit, someOf(s.Full), instead))
	}
	return out
}

// someOf lists names, the first few by name.
func someOf(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%v and %d more", names[:most], len(names)-most)
	}
	return fmt.Sprint(names)
}

// affinityNotices name the Service ports whose session affinity remembers no further clients. It runs on the loop.
func (p *Plane) affinityNotices() (list []dataplane.Notice) {
	for _, n := range p.pins.full {
		list = append(list, dataplane.Notice{Port: n, Text: fmt.Sprintf("session affinity remembers %d clients, its limit (--affinity-limit): "+
			"further ones get an endpoint by the hash of their address", p.set.AffinityLimit)})
	}
	return list
}
