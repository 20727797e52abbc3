//go:build linux

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// maxBatch is the size in bytes above which a transaction takes no further Service port. Larger ones gain
// nothing, and other programs wait while one is committed.
const maxBatch = 1 << 20

// maxReplace bounds the transaction that replaces a table, in bytes: some 20,000 Services of 5 endpoints.
// With more, none is served between its deletion and the last transaction.
var maxReplace = 32 << 20

// change is the change of one Service port.
type change struct {
	name     k8s.PortName
	port     *k8s.ServicePort // nil: it is gone
	slots    rules.Ports
	old, new rules.Service
	adopted  rules.Ports // the slots that a full round found installed
	full     bool
	// add are the elements to add. replaced are deleted in the same transaction before: those of them that
	// are there with other data, and the client ranges of their frontends that are not wanted any more,
	// because the kernel accepts no two that overlap.
	add, replaced rules.Elements
}

// size bounds the bytes of the elements in a transaction, shared ones included.
func (c *change) size() int {
	return netlink.Size(c.add) + netlink.Size(c.replaced) + sharedSize*(len(c.new.Shared)+len(c.old.Shared))
}

// sharedSize bounds the bytes of a shared element in a transaction: an address or two, of IPv6.
const sharedSize = 80

// round is one pass over Service ports: those that changed, or all of them after the table was read back.
type round struct {
	// before are the elements that are installed, of these Service ports or of all. Those that are still
	// wanted are taken out when they are planned; the rest is deleted with the last transaction.
	before rules.Elements
	// table is the table as it was read back; nil in a round over changed Service ports, or if there was no
	// table.
	table *netlink.Table
	full  bool
	used  map[string]bool // chains and sets that are wanted
	// oldChains and oldSets are those that session affinity of these Service ports had.
	oldChains, oldSets map[string]bool
	// the client ranges in before by their frontends, once one is asked for
	ranges map[string][]rules.Ref
	// replace begins the first transaction, which has all Service ports: it deletes the table and adds it
	// anew, so that no packet meets half of it. nil: there is nothing to replace.
	replace *netlink.Batch
	last    func(b *netlink.Batch) // adds to the last transaction; nil: nothing
}

func newRound(t *netlink.Table) *round {
	return &round{
		before:    rules.Elements{},
		table:     t,
		used:      map[string]bool{},
		oldChains: map[string]bool{},
		oldSets:   map[string]bool{},
	}
}

// program brings the table in step.
func (w *worker) program(ctx context.Context) error {
	if w.unknown {
		return w.sync(ctx)
	}
	names, _ := w.Due()
	if len(names) == 0 {
		return nil
	}
	if slices.ContainsFunc(names, w.Refused.Has) {
		return w.sync(ctx) // what is installed of them is not known
	}
	r := newRound(nil)
	for _, n := range names {
		p := w.have.ports[n]
		maps.Copy(r.before, p.compile().Elements)
	}
	err := w.programPorts(ctx, r, names)
	if refusal := new(netlink.RefusedError); errors.As(err, &refusal) {
		w.Log.Info("nftables refused a change; reading back the table", "error", err)
		return w.sync(ctx) // another program may have changed it
	}
	return err
}

// programPorts installs Service ports, in transactions that are complete for each of them. A Service port
// that the kernel refuses is put into backoff, and the others are installed, if that does not take a
// read-back first.
func (w *worker) programPorts(ctx context.Context, r *round, names []k8s.PortName) error {
	replaceMost := min(maxReplace, w.conn.MaxSend()-w.conn.MaxBatch())
	for done := false; !done; {
		if ctx.Err() != nil {
			return ctx.Err()
		}

		reserve := min(maxBatch, w.conn.MaxBatch()/2) // for what is not counted before it is added
		limit := w.conn.MaxBatch() - reserve
		b, most, elements := netlink.NewBatch(w.Family), reserve, w.have.elements
		if r.replace != nil {
			b, most = r.replace.Clone(), replaceMost
		}

		var list []*change
		shared, tags := map[rules.Ref]int{}, map[rules.Ref]int{} // the tags plus 1
		spreads := map[string]bool{}

		rest, size := names, 0
		for len(rest) > 0 && max(size, b.Len()) < most {
			c := w.plan(r, rest[0])
			room := limit
			if r.replace == nil {
				room -= b.Len()
			}
			if n := c.size(); c.port != nil && n > room {
				w.refuse(r, c, fmt.Errorf("its elements take %d bytes, and one transaction of nf_tables %d: "+
					"it has too many endpoints for so many addresses and ports", n, limit))
				rest = rest[1:]
				continue
			}

			size += c.size()
			b.Tag(len(list))
			w.addPort(b, r, c, spreads)
			for _, e := range c.new.Shared {
				if shared[e]++; tags[e] == 0 {
					tags[e] = len(list) + 1
				}
			}
			for _, e := range c.old.Shared {
				shared[e]--
			}
			list, rest = append(list, c), rest[1:]
		}

		if r.replace != nil && len(rest) > 0 {
			w.Log.Warn("the Services need more than one transaction: none is served before the last",
				"bytes", most)
			if err := w.commit(r.replace); err != nil {
				return err
			}
			r.replace, w.have.elements = nil, elements
			names = slices.DeleteFunc(names, func(n k8s.PortName) bool { // refused above
				return w.Refused.Waits(n, time.Now())
			})
			continue
		}
		w.changeShared(b, r, shared, tags)

		// What is no longer needed is deleted in transactions of its own if it is much, and if packets may
		// need it that found the Service port as it was: they look up its number of slots and the slot one
		// after the other.
		separately := false
		if len(rest) == 0 {
			gone := r.unneeded(list)
			if separately = netlink.Size(gone) > most || !b.Empty() && hasSlots(gone); !separately {
				w.addLast(b, r, gone)
			}
		}

		err := w.commit(b)
		if r.replace != nil && len(list) > 0 && lacksMemory(err) {
			w.Log.Warn("the kernel has no memory to replace the table at once", "error", err)
			w.have.elements, replaceMost = elements, 0
			continue
		}
		refusal := new(netlink.RefusedError)
		if errors.As(err, &refusal) && r.full && refusal.Tags[netlink.NoTag] == nil {
			w.have.elements = elements
			names = w.blame(r, refusal, list, rest)
			continue
		} else if err != nil {
			return err
		}

		for _, c := range list {
			w.have.note(c, w.compiler)
			w.sweep.add(&c.new)
			delete(w.Dirty, c.name)
			w.Refused.Forget(c.name)
			r.settle(c)
		}
		w.have.count(shared)
		r.replace = nil

		names, done = rest, len(rest) == 0
		if separately {
			awaitPackets()
			return w.deleteInPortions(ctx, r, most)
		}
	}
	return nil
}

// lacksMemory reports whether the kernel had no memory for a transaction: none for its bytes, which it takes
// in one piece, or for what they make.
func lacksMemory(err error) bool { return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) }

// hasSlots reports whether elements lead to endpoints.
func hasSlots(e rules.Elements) bool {
	for ref := range e {
		if ref.Set == rules.Endpoints || ref.Set == rules.NodePortEndpoints {
			return true
		}
	}
	return false
}

// awaitPackets waits until the kernel has finished with each packet that it was at work on: membarrier(2)
// waits for an RCU grace period, and a packet passes all of nf_tables within one RCU read-side section
// (Linux: net/netfilter/core.c, nf_hook).
func awaitPackets() {
	// It fails with nohz_full, or where it is not allowed.
	if _, _, failed := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); failed != 0 {
		time.Sleep(20 * time.Millisecond)
	}
}

const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL

// deleteInPortions deletes the elements that nothing needs any more, and then everything else that goes last.
// Those that lead to others go first (the order of rules.Sets), so that no packet finds a part of a Service.
func (w *worker) deleteInPortions(ctx context.Context, r *round, most int) error {
	refs := slices.SortedFunc(maps.Keys(r.before), func(a, b rules.Ref) int {
		return cmp.Compare(a.Set, b.Set)
	})
	for len(refs) > 0 && ctx.Err() == nil {
		portion := rules.Elements{}
		for size := 0; len(refs) > 0 && size < most; refs = refs[1:] {
			portion[refs[0]] = r.before[refs[0]]
			size += netlink.Size(rules.Elements{refs[0]: rules.Value{}})
			delete(r.before, refs[0])
		}
		b := netlink.NewBatch(w.Family)
		b.Delete(portion)
		if err := w.commit(b); err != nil {
			return err
		}
		w.have.elements -= len(portion)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b := netlink.NewBatch(w.Family)
	w.addLast(b, r, nil)
	return w.commit(b)
}

// blame puts the refused Service ports into backoff, and returns the names that are left to do. Installed
// elements of refused ones stay.
func (w *worker) blame(
	r *round, refusal *netlink.RefusedError, list []*change, rest []k8s.PortName,
) (names []k8s.PortName) {
	for i, c := range list {
		why, is := refusal.Tags[i]
		if !is {
			names = append(names, c.name)
			continue
		}
		w.refuse(r, c, why)
	}
	return append(names, rest...)
}

// refuse puts a Service port into backoff. What is installed of it stays.
func (w *worker) refuse(r *round, c *change, why error) {
	w.Refuse(c.name, why)
	w.Dirty[c.name] = true
	if r.full {
		r.keep(w.compiler.Service(c.port, c.adopted))
	}
	r.keep(c.old)
	r.keep(c.new)
}

// keep leaves what is installed of a Service port in place.
func (r *round) keep(s rules.Service) {
	for ref := range s.Elements {
		delete(r.before, ref)
	}
	for _, ref := range s.Shared {
		delete(r.before, ref)
	}
	for _, ch := range slices.Concat(s.Chains, s.Own.Chains) {
		r.used[ch.Name] = true
	}
	for _, m := range s.Own.Sets {
		r.used[m.Name] = true
	}
}

// plan returns the change of a Service port.
func (w *worker) plan(r *round, n k8s.PortName) *change {
	have := w.have.ports[n]
	c := &change{name: n, port: w.want[n], old: have.compile(), full: r.full}
	if c.port == nil {
		return c
	}

	slots := have.slots
	if r.full {
		c.adopted = w.compiler.Adopt(r.before, c.port)
		slots = c.adopted
	}
	c.slots = rules.AssignPorts(slots, c.port)
	c.new = w.compiler.Service(c.port, c.slots)

	c.add, c.replaced = rules.Elements{}, rules.Elements{}
	for ref, v := range c.new.Elements {
		was, ok := r.before[ref]
		if ok && was == v {
			continue
		}
		if ok {
			c.replaced[ref] = was
		}
		c.add[ref] = v
	}

	for ref := range c.add {
		if ref.Set == rules.SourceRanges {
			r.replaceRanges(c, ref.Frontend(n.Family))
		}
	}
	return c
}

// replaceRanges has a change delete the client ranges of a frontend that it does not want.
func (r *round) replaceRanges(c *change, frontend string) {
	if r.ranges == nil {
		r.ranges = map[string][]rules.Ref{}
		for ref := range r.before {
			if ref.Set == rules.SourceRanges {
				f := ref.Frontend(c.name.Family)
				r.ranges[f] = append(r.ranges[f], ref)
			}
		}
	}
	for _, ref := range r.ranges[frontend] {
		was, there := r.before[ref]
		if _, wanted := c.new.Elements[ref]; there && !wanted {
			c.replaced[ref] = was
		}
	}
}

// addPort adds the chains, sets and elements of a Service port that are not installed.
func (w *worker) addPort(b *netlink.Batch, r *round, c *change, spreads map[string]bool) {
	for _, ch := range c.old.Own.Chains {
		r.oldChains[ch.Name] = true
	}
	for _, m := range c.old.Own.Sets {
		r.oldSets[m.Name] = true
	}

	for i := range c.new.Own.Sets {
		s := &c.new.Own.Sets[i].Set
		has := slices.ContainsFunc(c.old.Own.Sets, func(o rules.ClientMap) bool { return o.Name == s.Name })
		if r.table != nil {
			has, _ = r.table.HasSet(s)
		}
		if !has {
			b.AddSet(s)
		}
		r.used[s.Name] = true
	}

	var fill []*rules.Chain
	chain := func(ch *rules.Chain, has, same bool) {
		if r.table != nil {
			has, _, same = r.table.HasChain(ch)
		}
		switch {
		case !has:
			b.AddChain(ch)
		case !same:
			b.FlushChain(ch.Name)
		}
		if !has || !same {
			fill = append(fill, ch)
		}
		r.used[ch.Name] = true
	}

	for i := range c.new.Chains {
		if ch := &c.new.Chains[i]; !w.have.spreads[ch.Name] && !spreads[ch.Name] {
			chain(ch, false, false)
			spreads[ch.Name] = true
		}
	}
	for i := range c.new.Own.Chains {
		ch := &c.new.Own.Chains[i]
		at := slices.IndexFunc(c.old.Own.Chains, func(o rules.Chain) bool { return o.Name == ch.Name })
		chain(ch, at >= 0, at >= 0 && reflect.DeepEqual(c.old.Own.Chains[at], *ch))
	}

	for _, ch := range fill {
		b.AddRules(ch)
	}
	b.Delete(c.replaced)

	b.Add(c.add)
	w.have.elements += len(c.add) - len(c.replaced)
}

// changeShared adds the shared elements that have owners now, and deletes those that have none any more. tags
// are the tags, plus 1, of the Service ports that are at fault if one is refused.
func (w *worker) changeShared(b *netlink.Batch, r *round, delta, tags map[rules.Ref]int) {
	add, gone, added := map[int]rules.Elements{}, rules.Elements{}, 0
	for ref, n := range delta {
		_, there := r.before[ref]
		had := w.have.shared[ref]
		switch {
		case had == 0 && n > 0 && !there:
			tag := tags[ref] - 1 // NoTag if there is none
			if add[tag] == nil {
				add[tag] = rules.Elements{}
			}
			add[tag][ref] = rules.Value{}
			added++
		case had > 0 && had+n == 0:
			gone[ref] = rules.Value{}
		}
	}
	for tag, elements := range add {
		b.Tag(tag)
		b.Add(elements)
	}
	b.Tag(netlink.NoTag)
	b.Delete(gone)
	w.have.elements += added - len(gone)
}

// unneeded returns the installed elements that no Service port needs once a list of changes is made.
func (r *round) unneeded(list []*change) rules.Elements {
	after := round{before: maps.Clone(r.before)}
	for _, c := range list {
		after.settle(c)
	}
	return after.before
}

// settle takes out of before what a change, once it is made, needs or has deleted.
func (r *round) settle(c *change) {
	for ref := range c.new.Elements {
		delete(r.before, ref)
	}
	for _, ref := range c.new.Shared {
		delete(r.before, ref)
	}
	for ref := range c.replaced {
		delete(r.before, ref)
	}
}

// addLast adds what follows all Service ports: it deletes the elements, chains and sets that nothing needs
// any more.
func (w *worker) addLast(b *netlink.Batch, r *round, gone rules.Elements) {
	chains, sets := slices.Sorted(maps.Keys(r.oldChains)), slices.Sorted(maps.Keys(r.oldSets))
	if r.table != nil {
		chains, sets = r.table.ChainNames(), r.table.SetNames()
	}
	used := func(n string) bool { return r.used[n] }
	chains, sets = slices.DeleteFunc(chains, used), slices.DeleteFunc(sets, used)
	b.Delete(gone)
	w.have.elements -= len(gone)
	for _, n := range chains {
		b.FlushChain(n)
	}
	for _, n := range sets { // before the chains, to which a verdict map may lead
		b.DeleteSet(n)
	}
	for _, n := range chains {
		b.DeleteChain(n)
	}
	if r.last != nil {
		r.last(b)
	}
}

// isSpread reports whether an installed chain picks an endpoint. One that no Service port uses stays, because
// it may be of use again.
func isSpread(t *netlink.Table, chain string) bool {
	ch, ok := rules.SpreadChain(chain)
	if !ok {
		return false
	}
	_, sameHook, sameRules := t.HasChain(&ch)
	return sameHook && sameRules
}

// commit commits a transaction, and reports it.
func (w *worker) commit(b *netlink.Batch) error {
	if b.Empty() {
		return nil
	}
	start := time.Now()
	err := w.conn.Commit(b)
	took := time.Since(start)
	if err == nil {
		w.Runs++
		w.Log.Debug("committed", "changes", b.Messages(), "bytes", b.Len(), "took", took)
	}
	return w.Committed(dataplane.Restore{
		Backend: w.Name,
		Table:   rules.TableName,
		Rules:   b.Messages(),
		Took:    took,
		Err:     err,
	})
}

// sync reads the table back and brings all of it in step. What is installed and wanted is not touched.
func (w *worker) sync(ctx context.Context) (err error) {
	w.unknown = true // until this succeeds
	w.endSweep()
	if err := w.group.Silence(w.conn); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = w.group.Listen(nil)
			return
		}
		err = w.group.Listen(w.conn)
	}()

	t, err := read(w.conn, w.Family)
	w.Loop.Progress()
	if err != nil {
		return err
	}

	fixed := w.compiler.Fixed()
	r := newRound(t)
	r.full = true
	b, was := netlink.NewBatch(w.Family), t
	t = w.ensureTable(b, r, &fixed)

	devices := len(w.compiler.Devices()) > 0
	if devices && (t == nil || !t.HasFlowtable) {
		b.AddFlowtable()
	}

	w.have.reset()
	w.have.elements = len(r.before)
	w.closeLocalnet(t, &fixed)

	if t != nil {
		for _, n := range t.ChainNames() {
			if isSpread(t, n) {
				r.used[n], w.have.spreads[n] = true, true
			}
		}
	}
	bases := addFixedChains(b, r, fixed.Chains)
	for _, s := range w.compiler.TableSets() {
		r.used[s.Name] = true
	}
	w.addFixedElements(b, r, fixed.Elements)
	if was != nil && t == nil {
		r.replace = b
	} else if err := w.commit(b); err != nil {
		return fmt.Errorf("install the chains that all Services share: %w", err)
	}

	r.last = func(b *netlink.Batch) {
		for _, ch := range bases {
			b.AddChain(ch)
			b.AddRules(ch)
		}
		if t != nil && t.HasFlowtable && !devices {
			b.DeleteFlowtable()
		}
	}

	w.flowtable.lookAt = time.Time{}
	w.queueWanted()

	names, waiting := w.Due()
	for _, n := range waiting { // refused, and not retried yet
		r.keep(w.compiler.Service(w.want[n], w.compiler.Adopt(r.before, w.want[n])))
	}
	if err := w.programPorts(ctx, r, names); err != nil {
		return err
	}

	w.openLocalnet()
	w.unknown = false
	w.CheckAt = time.Now().Add(w.Opts.SyncPeriod)
	return nil
}

// ensureTable adds the table to b if there is none, or one that does not fit, and the maps that it lacks: an
// earlier version has fewer. It returns the table that stays, if any.
func (w *worker) ensureTable(b *netlink.Batch, r *round, fixed *rules.Fixed) *netlink.Table {
	if r.table != nil && !fits(r.table, fixed) {
		w.Log.Info("the table is another version's, or dormant: it is replaced")
		b.DeleteTable(rules.TableName)
		r.table = nil
	}

	if r.table == nil {
		b.AddTable()
	} else {
		r.before = r.table.Elements
	}

	for i := range w.compiler.TableSets() {
		s, has := &rules.Sets[i], false
		if r.table != nil {
			has, _ = r.table.HasSet(s)
		}
		if !has {
			b.AddSet(s)
		}
	}
	return r.table
}

// addFixedChains adds the chains that differ from the installed ones to b. It returns the missing base
// chains, which are added last.
func addFixedChains(b *netlink.Batch, r *round, chains []rules.Chain) (bases []*rules.Chain) {
	var fill []*rules.Chain
	for i := range chains {
		ch := &chains[i]
		r.used[ch.Name] = true

		has, same := false, false
		if r.table != nil {
			has, _, same = r.table.HasChain(ch)
		}

		switch {
		case has && same:
		case has:
			b.AddChain(ch) // sets its policy
			b.FlushChain(ch.Name)
			fill = append(fill, ch)
		case ch.Hook.Type != "": // once all Services are there
			bases = append(bases, ch)
		default:
			b.AddChain(ch)
			fill = append(fill, ch)
		}
	}

	for _, ch := range fill {
		b.AddRules(ch)
	}
	return bases
}

// addFixedElements adds the elements that do not depend on Services.
func (w *worker) addFixedElements(b *netlink.Batch, r *round, elements []rules.Ref) {
	shared := map[rules.Ref]int{}
	for _, e := range elements {
		shared[e]++
	}
	w.changeShared(b, r, shared, nil)
	w.have.count(shared)
	for _, e := range elements {
		delete(r.before, e)
	}
}

// queueWanted has every wanted Service port programmed, and no other.
func (w *worker) queueWanted() {
	for n := range w.want {
		w.Dirty[n] = true
	}
	for n := range w.Dirty {
		if w.want[n] == nil {
			delete(w.Dirty, n) // what was installed of it is among what is left
		}
	}
}

// fits reports whether an installed table is in use, and those sets and hooks that it has are as this version
// has them. They cannot be changed in place.
func fits(t *netlink.Table, fixed *rules.Fixed) bool {
	if t.Dormant {
		return false
	}
	for i := range rules.Sets {
		if has, same := t.HasSet(&rules.Sets[i]); has && !same {
			return false
		}
	}
	for i := range fixed.Chains {
		if has, sameHook, _ := t.HasChain(&fixed.Chains[i]); has && !sameHook {
			return false
		}
	}
	return true
}

func isGone(err error) bool { return errors.Is(err, unix.ENOENT) }
