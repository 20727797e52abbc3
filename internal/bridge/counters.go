package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
)

// countersAge is the maximum age of cached counters: the switch updates them from its datapath no more often.
const countersAge = time.Second

// countDrops reads the counters of the flows that drop or refuse packets. It runs on the loop.
func (p *Plane) countDrops(ctx context.Context) error {
	conn, c, l := p.prog.conn, p.prog.compiler, &p.set.Layout
	if conn == nil || c == nil {
		return nil
	}

	now, read := map[dataplane.DropKey]uint64{}, map[k8s.PortName]bool{}
	cookies := p.dropsTurn(c.DropCookies())
	flows, err := conn.CookieCounters(ctx, cookies)
	if err != nil {
		return err
	}
	for _, cookie := range cookies {
		name, _ := c.Owner(cookie) // none: flows of no Service
		read[name] = true
	}
	for _, f := range flows {
		id, _ := l.PortOfCookie(f.Cookie)
		name, known := c.Owner(f.Cookie)
		if why := l.DropReason(f.Table, f.Priority); why != "" && (known || id == 0) {
			now[dataplane.DropKey{Port: name, Reason: why}] += f.Packets
		}
	}

	table, cookie := l.Unserved()
	unserved, err := conn.FlowCount(ctx, cookie, ^uint64(0), table)
	if err != nil {
		return err
	}
	now[dataplane.DropKey{Reason: k8s.DropUnservedPort}] = unserved.Packets

	if cfg := c.Config(); !cfg.NoMeter {
		limited := dataplane.DropKey{Reason: k8s.DropRateLimit}
		refusals := func(id uint32) bool { return l.IsMeter(id) && !l.IsPingMeter(id) }
		if now[limited], _, err = conn.MeterDrops(ctx, refusals); err != nil {
			return err
		}
		if err := p.countPings(ctx, conn, cfg.AnswerPing); err != nil {
			return err
		}
	}

	left := func(n k8s.PortName) bool { return !read[n] }
	p.drops.Count(now, left, c.Serves)
	return nil
}

// maxDrops is about how many flows that drop packets are read at once: a Service without endpoints has one at
// each of its addresses and ports, and all within the limits of cost have millions.
var maxDrops = 1 << 16 // changed by tests

// dropsTurn returns the cookies whose flows are read now: all, or in turns if they have more than maxDrops.
func (p *Plane) dropsTurn(number map[uint64]int) (turn []uint64) {
	all := slices.Sorted(maps.Keys(number))
	from, _ := slices.BinarySearch(all, p.dropsNext)
	sum := 0
	for i := range all {
		cookie := all[(from+i)%len(all)]
		if sum += number[cookie]; sum > maxDrops && i > 0 {
			p.dropsNext = cookie
			break
		}
		turn = append(turn, cookie)
	}
	return turn
}

// countPings reads the counters of pings of Services' addresses, if they are answered.
func (p *Plane) countPings(ctx context.Context, conn *ofctrl.Conn, answered bool) error {
	if !answered {
		return nil
	}
	l := &p.set.Layout
	table, cookie := l.Pings()
	flows, err := conn.FlowCount(ctx, cookie, ^uint64(0), table)
	if err != nil {
		return err
	}
	limited, _, err := conn.MeterDrops(ctx, l.IsPingMeter)
	if err == nil {
		p.pings.Store(&dataplane.Pings{Answered: flows.Packets, Limited: limited})
	}
	return err
}

// Pings returns the pings of Services' addresses when they were last counted; nil: they were not. Any
// goroutine may call it.
func (p *Plane) Pings() *dataplane.Pings { return p.pings.Load() }

// offloadNote is what the counters mean where tc, or a NIC, forwards established connections
// (docs/offload.md, "Counters").
const offloadNote = "hardware offload is on (other_config:hw-offload): " +
	"tc counts each segment of a merged packet, and up to 14 bytes a packet too few; " +
	"single packets can be missing"

// Counters returns the switch's counters of every Service port, read in one request. The result is shared: it
// must not be changed. Counters fails within a second if the switch does not answer.
func (p *Plane) Counters(
	ctx context.Context,
) (counters map[k8s.PortName]k8s.Counters, note string, err error) {
	if !p.set.Counters {
		return nil, "n/a: counters are off (--service-counters=false)", nil
	}
	if sw := p.db.Switch(); sw.Offload && sw.DatapathType == "system" {
		note = offloadNote
	}
	soon, cancel := context.WithTimeout(ctx, countersWait)
	defer cancel()
	if err := p.Answers(soon); err != nil {
		return nil, note, err
	}
	counters, err = p.counted.Get(ctx, func() (map[k8s.PortName]k8s.Counters, error) {
		return p.counters(ctx)
	})
	return counters, note, err
}

func (p *Plane) counters(ctx context.Context) (map[k8s.PortName]k8s.Counters, error) {
	var conn *ofctrl.Conn
	var why error
	err := p.ask(ctx, func() {
		if conn = p.prog.conn; conn == nil {
			why = p.notConnected()
		}
	})
	if err != nil || why != nil {
		return nil, errors.Join(err, why)
	}

	// Not on the loop, because ten thousand Services take a tenth of a second.
	cookie, mask := p.set.Layout.StaticCookies()
	flows, err := conn.TableCounters(ctx, p.set.Layout.CounterTable(), cookie, mask)
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}

	counters := make(map[k8s.PortName]k8s.Counters, len(flows)/3)
	err = p.ask(ctx, func() {
		if p.prog.compiler != nil {
			addUp(counters, flows, p.prog.compiler.Tally)
		}
		if err := p.countDrops(ctx); err != nil {
			p.log.Debug("cannot read the counters of dropped packets", "error", err)
		}
		p.drops.AddTo(counters) // else as of the last count
	})
	if err != nil {
		return nil, err
	}

	return counters, nil
}

// PortCounters reads the counters of one Service port: of the flows of its frontends, all of which are in
// first, and of its connections. counters.Packets is nil without --service-counters. The switch finds the
// flows by their cookie, so that the cost does not depend on the number of Services.
func (p *Plane) PortCounters(
	ctx context.Context,
	name k8s.PortName,
) (first uint64, counters k8s.Counters, err error) {
	id, conn, err := p.portID(ctx, name)
	if err != nil {
		return 0, counters, err
	}
	cookie, mask, _, _ := p.set.Layout.PortObjects(id)
	sum, err := conn.FlowCount(ctx, cookie, mask, p.set.Layout.FrontendTable())
	if err != nil {
		return 0, counters, err
	}
	flows, err := conn.TableCounters(ctx, p.set.Layout.CounterTable(), cookie, ^uint64(0))
	if err != nil {
		return 0, counters, err
	}
	all := map[k8s.PortName]k8s.Counters{}
	err = p.ask(ctx, func() { addUp(all, flows, p.prog.compiler.Tally) })
	return sum.Packets, all[name], err
}

// errNoFlows is the error of a Service port that the pipeline does not serve.
var errNoFlows = errors.New("has no flows")

// portID returns the id of a Service port that has flows, and the connection to the switch that has them.
func (p *Plane) portID(ctx context.Context, name k8s.PortName) (id uint32, conn *ofctrl.Conn, err error) {
	askErr := p.ask(ctx, func() {
		if conn = p.prog.conn; conn == nil || p.prog.compiler == nil {
			err = p.notConnected()
			return
		}
		if flows, _ := p.prog.compiler.Objects(name); len(flows) > 0 {
			id, _ = p.set.Layout.PortOfCookie(flows[0].Cookie)
		} else {
			err = fmt.Errorf("%s %w", name, errNoFlows)
		}
	})
	return id, conn, errors.Join(askErr, err)
}

// ethernetHeader is the size of an Ethernet header (IEEE 802.3), in bytes. Tagged frames have 4 more, which
// the switch's counters do not distinguish.
const ethernetHeader = 14

// addUp sums the counters of flows by Service port.
func addUp(
	into map[k8s.PortName]k8s.Counters,
	flows []ofctrl.FlowCounter,
	tally func(uint64, uint16) (k8s.PortName, pipeline.Tally),
) {
	for _, f := range flows {
		name, what := tally(f.Cookie, f.Priority)
		if what == pipeline.TallyNone {
			continue
		}
		c := into[name]
		if c.Packets == nil {
			c.Packets, c.Bytes = &k8s.Directions{}, &k8s.Directions{}
		}
		size := f.Size - min(f.Size, ethernetHeader*f.Packets)
		switch what {
		case pipeline.TallyOpened:
			c.Connections += f.Packets
			fallthrough
		case pipeline.TallyFromClient:
			c.Packets.In += f.Packets
			c.Bytes.In += size
		case pipeline.TallyFromEndpoint:
			c.Packets.Out += f.Packets
			c.Bytes.Out += size
		}
		into[name] = c
	}
}
