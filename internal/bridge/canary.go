package bridge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ofctrl/reject"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A canary is up to canaryTries datagrams, each a connection of its own, canaryPause apart, so that one that
// is lost under load is not the end of it.
const (
	canaryTries = 3
	canaryPause = 500 * time.Millisecond
	// canaryAsk bounds the questions to the switch about one that was lost.
	canaryAsk = time.Second
)

// canaryMAC is the source of canaries. nobodyMAC is their destination, to which bridges forward nothing (IEEE
// 802.1D-2004 §7.12.6), nor does the action NORMAL: a canary that loses its way does not leave the node.
var (
	canaryMAC = flow.MAC{0x0e, 'n', 'k', 'p', 0, 2}
	nobodyMAC = flow.MAC{0x01, 0x80, 0xc2, 0, 0, 0x0f}

	canaryHeader = append(nobodyMAC[:], canaryMAC[:]...)
)

// canary sends canaries through the bridge (pipeline.Canary).
type canary struct {
	*dataplane.Canary
	// ready is the last connection over which the switch was in step: it has the canaries' flows.
	ready atomic.Pointer[ofctrl.Conn]
	paths map[k8s.Family]*canaryPath
}

func newCanary(p *Plane) *canary {
	c := &canary{paths: map[k8s.Family]*canaryPath{}}
	for _, f := range dataplane.Families {
		c.paths[f] = &canaryPath{
			plane: p, family: f, addrs: pipeline.Canary(f),
			heard: make(chan canaryPacket, 4*canaryTries), port: uint16(rand.Uint32()),
		}
	}
	send := func(ctx context.Context, f k8s.Family, again bool) dataplane.CanaryResult {
		return c.paths[f].send(ctx, c.ready.Load(), again)
	}
	c.Canary = dataplane.NewCanary("ovs", p.log, p.hooks.DataPath, dataplane.Families, send)
	return c
}

// Canary returns what the canaries have shown.
func (p *Plane) Canary() []dataplane.CanaryVerdict { return p.canary.Verdicts() }

// take reports whether a packet from the switch is a canary's. It runs on the connection's packet-in
// goroutine.
func (c *canary) take(l *pipeline.Layout, in *ofctrl.PacketIn) bool {
	if in.InPort != flow.PortController || !bytes.HasPrefix(in.Data, canaryHeader) {
		return false
	}
	in.Data[0] &^= 1 // ReadSegment reads no frame to a group
	s, err := reject.ReadSegment(in.Data)
	if err != nil {
		return true
	}
	select {
	case c.paths[k8s.FamilyOf(s.To.Addr())].heard <- canaryPacket{s.From, s.To, in.Table == l.RejectTable()}:
	default: // nobody waits for it
	}
	return true
}

// canaryPath is the path of a family's canaries. Its fields belong to the goroutine that sends one.
type canaryPath struct {
	plane  *Plane
	family k8s.Family
	addrs  pipeline.CanaryAddrs
	heard  chan canaryPacket // packet-ins, from the connection's goroutine
	port   uint16            // of the client, of the latest datagram
	// counted are what the canary's flows had counted when one was lost.
	counted canaryCounts
}

// canaryPacket is a packet-in with a canary's datagram. refused: by nkp's pipeline.
type canaryPacket struct {
	from, to netip.AddrPort
	refused  bool
}

// canaryStage is how far a canary came.
type canaryStage int

const (
	canaryLost      canaryStage = iota // nothing of it was heard
	canaryRefused                      // nkp's pipeline refused it
	canaryUnchanged                    // it came to the end of the path with its Service's address
	canaryDelivered                    // its endpoint, which is nkp, got it; its answer was lost
	canaryForeign                      // the answer came to the client with the endpoint's address
	canaryPassed                       // with its Service's address
)

// Parts of the path, in order.
var (
	canaryWayIn   = []string{"tables 0 and 3", "conntrack lookup", "table 1", "group"}
	canaryWayDown = append(canaryWayIn[:4:4], "commit and translation", "table 2", "table 30")
	canaryWayBack = append(canaryWayDown[:7:7], "answer translated back")
)

// send sends a canary over the connection that is ready, and returns what became of it.
func (c *canaryPath) send(ctx context.Context, ready *ofctrl.Conn, again bool) dataplane.CanaryResult {
	if ready == nil || ready != c.plane.conn() {
		return dataplane.CanaryResult{Unknown: "the switch has not been in step yet since nkp connected"}
	}
	ctx, cancel := context.WithTimeout(ctx, canaryTries*canaryPause+canaryAsk)
	defer cancel()
	drops := ready.PacketInDrops()
	for len(c.heard) > 0 { // late ones
		<-c.heard
	}

	entries, stage, err := c.fly(ctx, ready)
	r := canaryResults[stage]
	if err == nil && r.Lost != "" {
		r, err = c.explain(ctx, ready, stage, again)
	}
	if err == nil && r.Lost != "" && ready.PacketInDrops() != drops {
		err = errors.New("the queue of packets from the switch to nkp was full")
	}
	if err = cmp.Or(forget(ctx, ready, c.plane.daemon(), entries), err); err != nil {
		return dataplane.CanaryResult{Unknown: err.Error()}
	}
	return r
}

// fly sends datagrams until one has come back as an answer, and returns the conntrack entries that they may
// have left, and how far the best one came.
func (c *canaryPath) fly(
	ctx context.Context, conn *ofctrl.Conn,
) (entries []dpctl.Connection, best canaryStage, err error) {
	frontend := netip.AddrPortFrom(c.addrs.Frontend, pipeline.CanaryPort)
	for range canaryTries {
		c.port++
		client := netip.AddrPortFrom(c.addrs.Client, max(c.port, 1))
		entries = append(entries, dpctl.Connection{
			Protocol: "UDP", Client: client, Frontend: frontend, Zone: c.plane.set.Layout.ZoneDNAT,
		})
		if err := c.packetOut(ctx, conn, client, frontend); err != nil {
			return entries, best, err
		}

		timeout := time.NewTimer(canaryPause)
		defer timeout.Stop()
		for waiting := true; waiting; {
			select {
			case in := <-c.heard:
				stage := c.stage(in, frontend)
				if stage == canaryDelivered {
					err = c.packetOut(ctx, conn, in.to, in.from)
				}
				if best = max(best, stage); best == canaryPassed || err != nil {
					return entries, best, err
				}
			case <-timeout.C:
				waiting = false
			case <-conn.Done():
				return entries, best, conn.Err()
			case <-ctx.Done():
				return entries, best, ctx.Err()
			}
		}
	}
	return entries, best, nil
}

// packetOut has the bridge handle a datagram as if it had come in by a port.
func (c *canaryPath) packetOut(ctx context.Context, conn *ofctrl.Conn, from, to netip.AddrPort) error {
	s := reject.Segment{EthSrc: canaryMAC, EthDst: nobodyMAC, From: from, To: to}
	return conn.PacketOut(ctx, flow.PortController, s.Frame(), c.plane.set.Layout.Entry())
}

// stage returns how far a datagram came.
func (c *canaryPath) stage(in canaryPacket, frontend netip.AddrPort) canaryStage {
	switch {
	case in.refused:
		return canaryRefused
	case slices.Contains(c.addrs.Endpoints[:], in.to.Addr()):
		return canaryDelivered
	case in.to.Addr() != c.addrs.Client:
		return canaryUnchanged
	case in.from != frontend:
		return canaryForeign
	}
	return canaryPassed
}

// canaryResults are what the stages show.
var canaryResults = [...]dataplane.CanaryResult{
	canaryLost:    {Lost: "it is lost between table 0 and table 30"},
	canaryRefused: {Lost: "table 1 has it refused", Passed: canaryWayIn[:2]},
	canaryUnchanged: {
		Lost: "it is not translated: conntrack did not commit its connection, or its group does not choose " +
			"an endpoint",
		Passed: canaryWayIn,
	},
	canaryDelivered: {
		Lost: "the answer is lost on its way back: a flow in table 0, 3, 1, 2 or 30 is missing, changed, " +
			"or hidden by one of others",
		Passed: canaryWayDown,
	},
	canaryForeign: {
		Lost: "the answer is not translated back: conntrack does not find its connection, or a flow in " +
			"table 0, 3 or 1 does not ask it",
		Passed: canaryWayDown,
	},
	canaryPassed: {Passed: canaryWayBack},
}

// canaryCounts are the counters of the flow of the canary's Service in table 1, and of the one that ends its
// path in table 30.
type canaryCounts [2]ofctrl.Counters

// explain returns what became of a canary that was lost. It compares the counters of its flows when a second
// one in a row is lost, because the switch brings them up to date within a second.
func (c *canaryPath) explain(
	ctx context.Context, conn *ofctrl.Conn, stage canaryStage, again bool,
) (r dataplane.CanaryResult, err error) {
	l := &c.plane.set.Layout
	was := c.counted
	for i, table := range []uint8{l.FrontendTable(), l.DeliveryTable()} {
		c.counted[i], err = conn.FlowCount(ctx, l.CanaryCookie(c.family), ^uint64(0), table)
		if err != nil {
			return r, err
		}
	}

	r = canaryResults[stage]
	if again && stage == canaryLost {
		r = c.counted.whereLost(was)
	}
	if n := c.plane.Figures().Foreign; n > 0 && r.Lost != "" {
		r.Lost += fmt.Sprintf("; flows of others in nkp's tables: %d (nkp diff)", n)
	}
	if stage > canaryUnchanged {
		return r, nil
	}
	usage, _, _ := c.plane.Asked(ctx)
	for _, fill := range usage.Fills() {
		if fill.Entries+fill.Limit/100 >= fill.Limit {
			r.Full, r.Lost = true, fill.String()+": full, it gets no entry"
		}
	}
	return r, nil
}

// whereLost returns what the counters show of a canary of which nothing was heard, since an earlier one that
// was lost, too.
func (now canaryCounts) whereLost(was canaryCounts) (r dataplane.CanaryResult) {
	switch first, last := now[0], now[1]; {
	case first.Flows == 0:
		r.Lost = "its Service's flow in table 1 is missing"
	case first.Packets == was[0].Packets:
		r.Lost = "it does not come to its Service's flow in table 1: conntrack drops it, or a flow in " +
			"table 0, 3 or 1 is missing, changed, or hidden by one of others"
	case last.Flows == 0:
		r.Lost = "the flow that ends its path in table 30 is missing"
	case last.Packets == was[1].Packets:
		r.Passed = canaryWayIn[:3]
		r.Lost = "it is lost between table 1 and table 30: its group chooses no endpoint, conntrack does " +
			"not commit it, or a flow in table 2 or 30 is missing, changed, or hidden by one of others"
	default: // a queue of the switch's may have been full
		r.Unknown = "the switch passed it to nkp, which did not get it"
	}
	return r
}

// forget deletes conntrack entries by their exact tuples. One that is gone already is no error.
func forget(ctx context.Context, conn *ofctrl.Conn, t dpctl.Daemon, list []dpctl.Connection) error {
	filters := make([]flow.CTFilter, 0, len(list))
	for _, c := range list {
		filters = append(filters, flow.CTFilter{
			Zone:    c.Zone,
			IPProto: c.IPProto(),
			Src:     c.Client,
			Dst:     c.Frontend,
		})
	}

	err := conn.Flush(ctx, filters)
	if !errors.Is(err, ofctrl.ErrNoCTFlush) {
		return err
	}
	return t.Forget(ctx, list)
}
