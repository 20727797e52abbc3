package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// The pins of session affinity are flows that packets create, so that a pod which forges source addresses can
// create any number. The switch itself enforces the limit of each Service port (flow.Learn.Limit). The limit
// of the node is enforced here: every CountPeriod nkp checks how many pins there are, and stops learning at
// --affinity-limit-node until a tenth of them has expired. Nothing here reads pins, and nothing counts them
// one by one while there are many.

// AffinityStatus is how many clients session affinity remembers.
type AffinityStatus struct {
	Clients   int    `json:"clients"`   // pins of all Service ports, at the last count
	Limit     uint32 `json:"limit"`     // of each Service port
	NodeLimit uint32 `json:"nodeLimit"` // of all together
	// Stopped reports that NodeLimit was reached: no new client is remembered.
	Stopped bool `json:"stopped"`
	// Full lists the Service ports at their limit, sorted. It is empty while Stopped.
	Full []string `json:"full"`
}

// affinity bounds the pins of a node. It belongs to the loop.
type affinity struct {
	set *Settings
	log *slog.Logger

	last pinCount
	// chosen is what the seed's flow had counted when the seed was last replaced: Open vSwitch keeps the
	// counter of a flow that is replaced by one with the same match.
	chosen uint64
}

// pinCount is what one count found.
type pinCount struct {
	clients int
	stopped bool
	full    []k8s.PortName
}

// count counts the pins, stops or resumes learning, and changes the seed if any client has chosen by it. c
// may be nil.
//
// A change makes Open vSwitch translate all its cached flows again. So does every new pin, so that a change
// costs no more than one of the clients that it follows.
func (a *affinity) count(ctx context.Context, conn *ofctrl.Conn, c *pipeline.Compiler) error {
	sizes, err := conn.TableSizes(ctx)
	if err != nil {
		return err
	}

	stop, seed := a.set.Layout.NoPins(), a.set.Layout.Seed(rand.Uint32())
	there, err := conn.FlowCount(ctx, stop.Cookie, ^uint64(0), stop.Table)
	if err != nil {
		return err
	}
	chosen, err := conn.FlowCount(ctx, seed.Cookie, ^uint64(0), seed.Table)
	if err != nil {
		return err
	}

	now := pinCount{clients: int(sizes[a.set.Layout.PinTable()])}
	limit := int(a.set.AffinityNodeLimit)
	switch { // between the two bounds the state stays
	case now.clients >= limit:
		now.stopped = true
	case now.clients > limit-limit/10:
		now.stopped = there.Flows > 0
	}

	switch {
	case now.stopped && there.Flows == 0:
		a.log.Warn("session affinity stops remembering clients: "+
			"this node's limit is reached (--affinity-limit-node)", "clients", now.clients, "limit", limit)
		_, err = conn.Commit(ctx, &flow.Delta{SetFlows: []*flow.Flow{stop}})
	case !now.stopped && there.Flows > 0:
		a.log.Info("session affinity remembers clients again", "clients", now.clients, "limit", limit)
		_, err = conn.Commit(ctx, &flow.Delta{SetFlows: []*flow.Flow{seed}})
	case !now.stopped && c != nil && (chosen.Packets != a.chosen ||
		chosen.Flows == 0 && len(c.PinOwners()) > 0): // clients have chosen by the present seed
		if _, err = conn.Commit(ctx, &flow.Delta{SetFlows: []*flow.Flow{seed}}); err == nil {
			a.chosen = chosen.Packets
		}
	}
	if err != nil {
		return err
	}

	if !now.stopped && now.clients >= int(a.set.AffinityLimit) && c != nil {
		if now.full, err = a.fullPorts(ctx, conn, c); err != nil {
			return err
		}
	}

	for _, n := range now.full {
		if !slices.Contains(a.last.full, n) {
			a.log.Warn("session affinity remembers no further clients of a Service port: "+
				"its limit is reached (--affinity-limit)", "service", n, "limit", a.set.AffinityLimit)
		}
	}

	a.last = now
	return nil
}

// fullPorts returns the Service ports that have as many pins as they may, sorted.
func (a *affinity) fullPorts(
	ctx context.Context,
	conn *ofctrl.Conn,
	c *pipeline.Compiler,
) (full []k8s.PortName, err error) {
	owners := c.PinOwners()
	cookies := slices.Collect(maps.Keys(owners))
	counts, err := conn.CookieCounts(ctx, a.set.Layout.PinTable(), cookies)
	if err != nil {
		return nil, err
	}
	for i, n := range counts {
		if n >= uint64(a.set.AffinityLimit) {
			full = append(full, owners[cookies[i]])
		}
	}
	slices.SortFunc(full, k8s.PortName.Compare)
	return full, nil
}

func (a *affinity) status() AffinityStatus {
	s := AffinityStatus{
		Clients:   a.last.clients,
		Limit:     a.set.AffinityLimit,
		NodeLimit: a.set.AffinityNodeLimit,
		Stopped:   a.last.stopped,
		Full:      []string{},
	}
	for _, n := range a.last.full {
		s.Full = append(s.Full, n.String())
	}
	return s
}

// warnings returns one line for each limit that was reached.
func (s *AffinityStatus) warnings() (out []string) {
	const instead = "further clients get an endpoint by the hash of their address, " +
		"and keep it while the endpoints stay the same"
	if s.Stopped {
		out = append(out, fmt.Sprintf("session affinity remembers %d clients on this node, "+
			"at most %d (--affinity-limit-node): %s", s.Clients, s.NodeLimit, instead))
	}
	if len(s.Full) > 0 {
		out = append(out, fmt.Sprintf("session affinity remembers %d clients, the limit of a Service port "+
			"(--affinity-limit), for %s: %s", s.Limit, dataplane.Some(5, s.Full), instead))
	}
	return out
}

// notices name the Service ports whose session affinity remembers no further clients.
func (a *affinity) notices() (list []dataplane.Notice) {
	for _, n := range a.last.full {
		list = append(list, dataplane.Notice{Port: n,
			Text: fmt.Sprintf("session affinity remembers %d clients, its limit (--affinity-limit): "+
				"further ones get an endpoint by the hash of their address", a.set.AffinityLimit)})
	}
	return list
}
