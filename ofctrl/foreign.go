package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// ErrForeignFlow is the cause of a Rejection if a foreign flow has the same table, priority and match: adding the flow would
// replace the foreign one, regardless of its cookie.
var ErrForeignFlow = errors.New("another owner's flow has the same table, priority and match")

// foreignFlows are the flows of other owners in nkp's tables, by the digests of their keys. Reads fill it. After Watch the switch
// reports every later change as it happens, in order with the connection's other messages, so that nothing is missed between
// a read and the commit that follows from it.
type foreignFlows struct {
	seed maphash.Seed
	max  int // flows

	mu      sync.Mutex        // protects the rest
	cookies map[uint64]uint64 // by digest of the key
	left    bool              // max was reached: some flows are not in cookies
	watch   *Filter           // of the last Watch; nil: the switch reports nothing
	paused  chan struct{}     // closed when the switch resumes its reports; nil: they are not paused
}

// maxForeign is foreignFlows.max; each takes some 40 bytes. Flows beyond it may be replaced.
const maxForeign = 1 << 20

// set records that a flow with this key and cookie is on the switch. Callers hold mu.
func (o *foreignFlows) set(k flow.Key, cookie uint64) {
	if k.Match.Unknown != "" {
		return // no flow of nkp's matches on such a field
	}
	d := k.Digest(o.seed)
	if _, known := o.cookies[d]; !known && len(o.cookies) >= o.max {
		o.left = true
		return
	}
	o.cookies[d] = cookie
}

// note is set for a flow that was read.
func (o *foreignFlows) note(f *flow.Flow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(f.Key, f.Cookie)
}

// reading must be called before a read. It deletes the known flows unless the switch reports which of them were removed.
func (o *foreignFlows) reading() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch == nil || o.left {
		clear(o.cookies)
		o.left = false
	}
}

// in returns a Rejection for each flow in set that would replace a foreign one.
func (o *foreignFlows) in(set []*flow.Flow) (list []Rejection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.cookies) == 0 {
		return nil
	}
	for _, f := range set {
		if cookie, ok := o.cookies[f.Key.Digest(o.seed)]; ok {
			list = append(list, Rejection{Op: OpSet, Object: f, Cause: fmt.Errorf("%w, and cookie=%#x; remove it, or move nkp with --table-base", ErrForeignFlow, cookie)})
		}
	}
	return list
}

// forget records that the flows in set are installed, and returns how many foreign flows they have replaced.
func (o *foreignFlows) forget(set []*flow.Flow) (replaced int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.cookies) == 0 {
		return 0
	}
	for _, f := range set {
		d := f.Key.Digest(o.seed)
		if _, ok := o.cookies[d]; ok {
			delete(o.cookies, d)
			replaced++
		}
	}
	return replaced
}

// mpFlowMonitor is OFPMP_FLOW_MONITOR (OpenFlow 1.5.1 §7.3.5.21); Open vSwitch has it for OpenFlow 1.5 since 2.17.
const mpFlowMonitor = 16

// Flags of a flow monitor (§7.3.5.21, ofp_flow_monitor_flags). Without FMF_NO_ABBREV the connection's own changes are reported
// by their transaction ids alone, once for many.
const (
	monitorAdd    = 1 << 1
	monitorRemove = 1 << 2
	monitorModify = 1 << 3
)

// Events of a flow monitor (§7.3.5.21, ofp_flow_update_event).
const (
	flowAdded    = 1
	flowRemoved  = 2
	flowModified = 3
	flowPaused   = 5
	flowResumed  = 6

	flowUpdateLen = 24 // ofp_flow_update_full without its match
)

// Watch makes the switch report changes to foreign flows in the given tables, so that Commit refuses to replace foreign flows
// (ErrForeignFlow) also if they were added after the last Read. Call it once, before the first Read. f defines which cookies
// are not foreign. A *SwitchError means that the switch cannot report changes; Commit then uses the result of the last Read.
func (c *Conn) Watch(ctx context.Context, f Filter, tables []uint8) error {
	c.foreign.mu.Lock()
	c.foreign.watch = &f
	c.foreign.mu.Unlock()
	err := c.ask(ctx, mpFlowMonitor, len(tables), func(b []byte, i int) ([]byte, error) {
		b = put32(put32(put32(b, uint32(i)), flow.PortAny), groupAny)
		b = append(put16(b, monitorAdd|monitorRemove|monitorModify), tables[i], 0)
		return match(b, &flow.Match{}, false)
	}, func([]byte) error { return nil })
	if err != nil {
		c.foreign.mu.Lock()
		c.foreign.watch = nil
		c.foreign.mu.Unlock()
	}
	return err
}

// update takes a report of a flow monitor. It comes under transaction id 0.
func (o *foreignFlows) update(f frame) error {
	b := f.body()
	if len(b) < mpHeaderLen || u16(b) != mpFlowMonitor {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch == nil {
		return nil
	}
	for b = b[mpHeaderLen:]; len(b) > 0; {
		if len(b) < 8 {
			return short("flow update")
		}
		n := int(u16(b))
		if n < 8 || n > len(b) {
			return fmt.Errorf("%w: flow update of %d bytes", ErrProtocol, n)
		}
		if err := o.event(u16(b[2:]), b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (o *foreignFlows) event(typ uint16, b []byte) error {
	switch typ {
	case flowPaused: // too much at once; what was missed is reported before it goes on (ofmonitor_resume in Open vSwitch)
		if o.paused == nil {
			o.paused = make(chan struct{})
		}
		return nil
	case flowResumed:
		o.resume()
		return nil
	case flowAdded, flowRemoved, flowModified:
	default:
		return nil
	}
	if len(b) < flowUpdateLen {
		return short("flow update")
	}
	k, cookie := flow.Key{Table: b[4], Priority: u16(b[10:])}, u64(b[16:])
	var err error
	if k.Match, _, err = decodeMatch(b[flowUpdateLen:]); err != nil {
		return err
	}
	if typ == flowRemoved || o.watch.own(cookie) {
		delete(o.cookies, k.Digest(o.seed))
	} else {
		o.set(k, cookie)
	}
	return nil
}

func (o *foreignFlows) resume() {
	if o.paused != nil {
		close(o.paused)
		o.paused = nil
	}
}

// pauseWait bounds the wait for a switch that has paused its reports. Open vSwitch resumes once the connection has drained its
// queue (connmgr.c, ofmonitor_may_resume).
const pauseWait = 5 * time.Second

// upToDate waits until the switch has resumed its reports, if they are paused.
func (c *Conn) upToDate(ctx context.Context) error {
	c.foreign.mu.Lock()
	paused := c.foreign.paused
	c.foreign.mu.Unlock()
	if paused == nil {
		return nil
	}
	timer := time.NewTimer(pauseWait)
	defer timer.Stop()
	select {
	case <-paused:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return c.err
	case <-timer.C:
		return fmt.Errorf("the switch has reported no flows of other owners for %v, and says that it will go on", pauseWait)
	}
}
