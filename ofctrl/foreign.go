package ofctrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// ErrForeignFlow is the cause of a Rejection if a foreign flow has the same table, priority and match: adding
// the flow would replace the foreign one, regardless of its cookie.
var ErrForeignFlow = errors.New("another owner's flow has the same table, priority and match")

// foreignFlows are the flows of other owners in nkp's tables, by the digests of their keys. Reads fill it.
// After Watch the switch reports every later change as it happens, in order with the connection's other
// messages, so that nothing is missed between a read and the commit that follows from it.
type foreignFlows struct {
	seed maphash.Seed
	max  int // flows

	mu         sync.Mutex             // protects the rest
	known      map[uint64]foreignFlow // by digest of the key
	count      [256]int               // of the known ones, by table
	normal     [256]int               // of these, those that forward all packets
	tracks     [256]int               // and those that use conntrack
	onOthers   func()                 // Options.OnOthers
	kept       int                    // of the known ones that are kept in full
	overflowed bool                   // max was reached: some flows are not known
	generation uint64                 // how often known was changed
	read       uint64                 // number of the last read that has begun
	dec        *decoder               // of the switch's reports; nil: none was decoded yet
	watch      *Filter                // of the last Watch; nil: the switch reports nothing
	tables     []uint8                // that it reports
	alike      [256]uint64            // bits in which a large table's cookies did not differ, by table
	paused     chan struct{}          // closed when the switch resumes its reports; nil: they are not paused
}

// foreignFlow is what is remembered of a foreign flow.
type foreignFlow struct {
	cookie uint64
	table  uint8
	normal bool       // it forwards all packets
	tracks bool       // it uses conntrack
	read   uint64     // the last read that had begun when it was seen
	full   *flow.Flow // nil: there are MaxKept others, or Filter.Keep does not ask for it
}

// maxForeign is foreignFlows.max; each takes some 50 bytes. Flows beyond it may be replaced.
const maxForeign = 1 << 20

// MaxKept bounds the foreign flows that a connection keeps in full; each takes some 700 bytes.
const MaxKept = 1000

// set records that a flow is on the switch. Callers hold mu.
func (o *foreignFlows) set(f *flow.Flow, keep func(*flow.Flow) bool) {
	d := f.Key.Digest(o.seed)
	was, known := o.known[d]
	if !known && len(o.known) >= o.max {
		o.overflowed = true
		return
	}

	o.generation++
	before := o.use(f.Table)
	if !known {
		o.count[f.Table]++
	}
	if was.full != nil {
		o.kept--
	}

	now := foreignFlow{
		cookie: f.Cookie, table: f.Table, read: o.read,
		normal: f.Forwards(), tracks: flow.EffectsOf(f.Actions).Conntrack,
	}
	o.normal[f.Table] += count(now.normal) - count(was.normal)
	o.tracks[f.Table] += count(now.tracks) - count(was.tracks)
	o.reportUse(f.Table, before)

	if o.kept < MaxKept && keep != nil && keep(f) {
		now.full = f
		o.kept++
	}
	o.known[d] = now
}

// remove records that no foreign flow has this key any more, and reports whether one had it. Callers hold mu.
func (o *foreignFlows) remove(k *flow.Key) bool {
	d := k.Digest(o.seed)
	was, known := o.known[d]
	if !known {
		return false
	}
	o.drop(d, was)
	return true
}

// drop removes a known flow. Callers hold mu.
func (o *foreignFlows) drop(digest uint64, k foreignFlow) {
	delete(o.known, digest)
	o.generation++
	before := o.use(k.table)
	o.count[k.table]--
	o.normal[k.table] -= count(k.normal)
	o.tracks[k.table] -= count(k.tracks)
	o.reportUse(k.table, before)
	if k.full != nil {
		o.kept--
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// others returns what the known flows of a table do. Callers hold mu.
func (o *foreignFlows) others(table uint8) flow.Others {
	switch o.count[table] {
	case 0:
		return flow.OthersNone
	case o.normal[table]:
		return flow.OthersForward
	}
	return flow.OthersDecide
}

// tableUse is what Options.OnOthers reports of the flows of a table.
type tableUse struct {
	others flow.Others
	tracks bool
}

// use returns what the known flows of a table do. Callers hold mu.
func (o *foreignFlows) use(table uint8) tableUse {
	return tableUse{o.others(table), o.tracks[table] > 0}
}

// reportUse calls onOthers if what the flows of a table do has changed. Callers hold mu.
func (o *foreignFlows) reportUse(table uint8, before tableUse) {
	if o.onOthers != nil && o.use(table) != before {
		o.onOthers()
	}
}

// Others returns what the foreign flows of a table of Filter.Tables do, as of the last Read and the switch's
// reports since.
func (c *Conn) Others(table uint8) flow.Others {
	c.foreign.mu.Lock()
	defer c.foreign.mu.Unlock()
	return c.foreign.others(table)
}

// Tracks is like Others and reports whether one of the flows uses conntrack.
func (c *Conn) Tracks(table uint8) bool {
	c.foreign.mu.Lock()
	defer c.foreign.mu.Unlock()
	return c.foreign.tracks[table] > 0
}

// Foreign are the foreign flows that a connection has seen.
type Foreign struct {
	// Kept are those that Filter.Keep asks for, up to MaxKept, by ascending table and descending priority.
	Kept []*flow.Flow
	// Number counts all by table, without the tables that were too large to be read.
	Number [256]int
}

// ForeignChanges counts the changes to what Foreign returns.
func (c *Conn) ForeignChanges() uint64 {
	c.foreign.mu.Lock()
	defer c.foreign.mu.Unlock()
	return c.foreign.generation
}

// Foreign returns the foreign flows in Filter.Tables as of the last Read and the switch's reports since.
func (c *Conn) Foreign() Foreign {
	o := &c.foreign
	o.mu.Lock()
	defer o.mu.Unlock()
	out := Foreign{Number: o.count}
	if o.kept == 0 {
		return out
	}
	for _, k := range o.known {
		if k.full != nil {
			out.Kept = append(out.Kept, k.full)
		}
	}
	slices.SortFunc(out.Kept, func(a, b *flow.Flow) int {
		return cmp.Or(
			cmp.Compare(a.Table, b.Table),
			cmp.Compare(b.Priority, a.Priority),
			cmp.Compare(a.Match.String(), b.Match.String()),
		)
	})
	return out
}

// addRead calls set for a flow that was read. Callers do not hold mu.
func (o *foreignFlows) addRead(f *flow.Flow, keep func(*flow.Flow) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(f, keep)
}

// begin must be called before a read of foreign flows. Until end, what was known before stays known.
func (o *foreignFlows) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read++
	if o.overflowed { // there is no room for both
		clear(o.known)
		o.count, o.normal, o.tracks, o.kept, o.overflowed = [256]int{}, [256]int{}, [256]int{}, 0, false
		o.generation++
	}
}

// end must be called after such a read of tables, if it has succeeded. It deletes what the read has not seen
// there, except in tables where the switch reports which flows were removed.
func (o *foreignFlows) end(tables []uint8) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for d, k := range o.known {
		unwatched := o.watch == nil || !slices.Contains(o.tables, k.table)
		if k.read != o.read && unwatched && slices.Contains(tables, k.table) {
			o.drop(d, k)
		}
	}
}

// conflicts returns a Rejection for each flow in set that would replace a foreign one.
func (o *foreignFlows) conflicts(set []*flow.Flow) (list []Rejection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known) == 0 {
		return nil
	}
	for _, f := range set {
		if there, ok := o.known[f.Key.Digest(o.seed)]; ok {
			list = append(list, Rejection{
				Op:     OpSet,
				Object: f,
				Cause: fmt.Errorf("%w, and cookie=%#x; remove it, or move nkp with --table-base",
					ErrForeignFlow, there.cookie),
			})
		}
	}
	return list
}

// forget records that the flows in set are installed, and returns how many foreign flows they have replaced.
func (o *foreignFlows) forget(set []*flow.Flow) (replaced int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known) == 0 {
		return 0
	}
	for _, f := range set {
		if o.remove(&f.Key) {
			replaced++
		}
	}
	return replaced
}

// mpFlowMonitor is OFPMP_FLOW_MONITOR (OpenFlow 1.5.1 §7.3.5.21); Open vSwitch has it for OpenFlow 1.5 since
// 3.0.
const mpFlowMonitor = 16

// Flags of a flow monitor (§7.3.5.21, ofp_flow_monitor_flags). Without FMF_NO_ABBREV the connection's own
// changes are reported by their transaction ids alone, once for many.
const (
	monitorAdd    = 1 << 1
	monitorRemove = 1 << 2
	monitorModify = 1 << 3
	monitorFull   = 1 << 4 // with the flow's instructions
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

// Watch makes the switch report changes to foreign flows in the given tables, so that Commit refuses to
// replace foreign flows (ErrForeignFlow) also if they were added after the last Read. Call it once, before
// the first Read. f defines which cookies are not foreign. A *SwitchError means that the switch cannot report
// changes; Commit then uses the result of the last Read.
func (c *Conn) Watch(ctx context.Context, f Filter, tables []uint8) error {
	c.foreign.mu.Lock()
	c.foreign.watch, c.foreign.tables = &f, tables
	c.foreign.mu.Unlock()
	flags := uint16(monitorAdd | monitorRemove | monitorModify)
	if f.Keep != nil {
		flags |= monitorFull
	}
	err := c.ask(ctx, mpFlowMonitor, len(tables), func(b []byte, i int) ([]byte, error) {
		b = put32(put32(put32(b, uint32(i)), flow.PortAny), groupAny)
		b = append(put16(b, flags), tables[i], 0)
		return match(b, &flow.Match{}, false)
	}, func([]byte) error { return nil })
	if err != nil {
		c.foreign.mu.Lock()
		c.foreign.watch = nil
		c.foreign.mu.Unlock()
	}
	return err
}

// monitorQuestion returns the request of Watch that waits for an answer, nil if there is none. Open vSwitch
// 2.17 refuses it by errors whose transaction id is 0: it takes the request's match for its header
// (handle_flow_monitor_request in ofproto.c).
func (c *Conn) monitorQuestion() *question {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if q, ok := k.sink.(*question); ok && q.typ == mpFlowMonitor {
			return q
		}
	}
	return nil
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
	return records(b[mpHeaderLen:], "flow update", 8, 0, func(u []byte) error {
		return o.event(u16(u[2:]), u)
	})
}

func (o *foreignFlows) event(typ uint16, b []byte) error {
	switch typ {
	// Too much at once. Open vSwitch reports what was missed before it goes on (ofmonitor_resume).
	case flowPaused:
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

	g := &flow.Flow{Cookie: u64(b[16:])}
	g.Table, g.Priority = b[4], u16(b[10:])
	var n int
	var err error
	if g.Match, n, err = decodeMatch(b[flowUpdateLen:]); err != nil {
		return err
	}

	if typ == flowRemoved || !o.watch.foreign(g.Cookie) {
		o.remove(&g.Key)
		return nil
	}

	if o.watch.Keep != nil {
		if o.dec == nil {
			o.dec = newDecoder()
		}
		o.dec.v6 = g.Match.EthType == flow.EthIPv6
		if g.Actions, err = o.dec.instructions(b[flowUpdateLen+n:]); err != nil {
			return err
		}
	}

	o.set(g, o.watch.Keep)
	return nil
}

func (o *foreignFlows) resume() {
	if o.paused != nil {
		close(o.paused)
		o.paused = nil
	}
}

// pauseWait bounds the wait for a switch that has paused its reports. Open vSwitch resumes once the
// connection has drained its queue (connmgr.c, ofmonitor_may_resume).
const pauseWait = 5 * time.Second

// upToDate waits until the switch has resumed its reports, if they are paused.
func (c *Conn) upToDate(ctx context.Context) error {
	c.foreign.mu.Lock()
	paused := c.foreign.paused
	c.foreign.mu.Unlock()
	if paused == nil {
		return nil
	}
	select {
	case <-paused:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return c.err
	case <-time.After(pauseWait):
		return fmt.Errorf("the switch has reported no flows of other owners for %v, "+
			"and says that it will go on",
			pauseWait)
	}
}
