package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Types and flags of bundle messages (OpenFlow 1.5.1 §7.3.9).
const (
	bundleOpen         uint16 = 0
	bundleOpenReply    uint16 = 1
	bundleClose        uint16 = 2
	bundleCloseReply   uint16 = 3
	bundleCommit       uint16 = 4
	bundleCommitReply  uint16 = 5
	bundleDiscard      uint16 = 6
	bundleDiscardReply uint16 = 7

	bundleFlags uint16 = 1<<0 | 1<<1 // atomic, ordered
)

// item is one message of a bundle: it sets or deletes an object, or sets a part of a group.
type item struct {
	object any   // as in Rejection, or the flow.Cookies of flows that are cleared
	set    bool  // not delete
	part   int32 // of a group in parts
}

func (it item) op() Op {
	if it.set {
		return OpSet
	}
	return OpDel
}

// bundle is one bundle on its way. Transaction ids by index: 0 opens, 1 to n add, n+1 closes, n+2 commits,
// n+3 discards.
type bundle struct {
	c     *Conn
	d     *flow.Delta
	id    uint32
	call  *call
	items []item
	parts map[*flow.Group][][]flow.Bucket // of the groups that are sent in parts
	res   Result
	start time.Time

	refused  atomic.Int32 // how many errors the reader saw
	replaced atomic.Int32 // foreign flows that the commit replaced
	replies  chan uint16  // types of the control replies, from the reader

	mu   sync.Mutex // protects errs and more, which the reader writes
	errs []indexed
	more int // errors beyond maxRejections
}

type indexed struct {
	i   int
	err *SwitchError
}

func (b *bundle) closeXid() int   { return len(b.items) + 1 }
func (b *bundle) commitXid() int  { return len(b.items) + 2 }
func (b *bundle) discardXid() int { return len(b.items) + 3 }

// receive implements sink.
func (b *bundle) receive(i int, f frame) error {
	switch f.typ() {
	case typeError:
		e, _ := parseError(f)
		b.mu.Lock()
		if len(b.errs) < maxRejections {
			b.errs = append(b.errs, indexed{i, e})
		} else {
			b.more++
		}
		b.mu.Unlock()
		b.refused.Add(1)
		if i >= b.closeXid() { // a control message: there will be no reply to it
			b.reply(0)
		}

	case typeBundleControl:
		if body := f.body(); len(body) >= 8 && u32(body) == b.id {
			t := u16(body[4:])
			// On the reader, because the next message may report a flow that replaces one of these.
			if t == bundleCommitReply {
				b.replaced.Store(int32(b.c.foreign.forget(b.d.SetFlows)))
			}
			if t != bundleOpenReply {
				b.reply(t)
			}
		}
	}
	return nil
}

// reply never blocks the reader: it drops surplus replies from the switch.
func (b *bundle) reply(t uint16) {
	select {
	case b.replies <- t:
	default:
	}
}

// commitBundle sends groups, flows and deletions as one bundle. In Open vSwitch a refused message does not
// make the bundle fail, so commitBundle waits for the end of the bundle and checks for errors before the
// commit.
func (c *Conn) commitBundle(ctx context.Context, d *flow.Delta) (Result, error) {
	b := &bundle{c: c, d: d, replies: make(chan uint16, 8)}
	tx := b.plan()
	if err := tx.orNil(); err != nil {
		return Result{}, err
	}
	if len(b.items) == 0 {
		return Result{}, nil
	}
	c.bundle++
	b.id = c.bundle
	b.call = c.register(len(b.items)+4, b)
	defer c.unregister(b.call)

	err := b.add(ctx)
	if err == nil {
		err = b.wait(ctx, bundleCloseReply)
	}
	if err != nil || b.refused.Load() > 0 {
		b.discard()
		return b.res, b.refusal(StageBundle, err)
	}
	if err := c.upToDate(ctx); err != nil {
		b.discard()
		return b.res, err
	}
	// The reply to the end of the bundle came after the reports of all earlier changes by others.
	if tx.Rejected = c.foreign.conflicts(d.SetFlows); len(tx.Rejected) > 0 {
		b.discard()
		return b.res, tx.orNil()
	}
	return b.res, b.commit(ctx)
}

// plan lists the messages in their order: groups before the flows that point to them, deletions after, so
// that no flow is lost with its group. It rejects the groups that are too wide.
func (b *bundle) plan() *TxError {
	d := b.d
	tx := &TxError{Stage: StageBundle}
	b.items = make([]item, 0,
		len(d.Clear)+len(d.SetGroups)+len(d.SetFlows)+
			len(d.DelFlows)+len(d.DelLearned)+len(d.DelGroups))
	limit := b.c.opts.maxMessage
	add := func(object any, set bool) { b.items = append(b.items, item{object: object, set: set}) }

	for _, c := range d.Clear {
		add(c, false)
	}

	for _, g := range d.SetGroups {
		switch n := g.EncodedSize(); {
		case n <= min(limit, maxMessage-64): // by far the most common case, and surely not too wide
			add(g, true)
		case g.TooWide():
			tx.Rejected = append(tx.Rejected, Rejection{
				Op:     OpSet,
				Object: g,
				Cause:  fmt.Errorf("%w: %d buckets in %d bytes", ErrGroupTooWide, len(g.Buckets), n),
			})
		default:
			if b.parts == nil {
				b.parts = map[*flow.Group][][]flow.Bucket{}
			}
			b.parts[g] = g.Parts(limit)
			for k := range b.parts[g] {
				b.items = append(b.items, item{object: g, set: true, part: int32(k)})
			}
		}
	}

	for _, f := range d.SetFlows {
		add(f, true)
	}
	for _, f := range d.DelFlows {
		add(f, false)
	}
	for _, l := range d.DelLearned {
		add(l, false)
	}
	for _, id := range d.DelGroups {
		add(GroupID(id), false)
	}
	return tx
}

// encode appends one item as the message inside a bundle.
func (b *bundle) encode(buf []byte, it item, xid uint32) ([]byte, error) {
	e := b.c.encoder
	switch o := it.object.(type) {
	case flow.Cookies:
		return e.clear(buf, xid, o)
	case *flow.Group:
		part := o.Buckets
		if ps := b.parts[o]; ps != nil {
			part = ps[it.part]
		}
		return e.groupPart(buf, xid, o, part, int(it.part))
	case *flow.Flow:
		if it.set {
			return e.flowAdd(buf, xid, o)
		}
		return e.flowDelete(buf, xid, o)
	case flow.Learned:
		return e.learnedDelete(buf, xid, o)
	default:
		return e.groupDelete(buf, xid, uint32(o.(GroupID)))
	}
}

// add sends the open message, all items and the close message, in chunks. It continues after a refusal, to
// collect all of them, up to about maxRejections.
func (b *bundle) add(ctx context.Context) error {
	c := b.c
	b.start = time.Now()
	p := getBuffer()
	*p = b.control(*p, bundleOpen, 0)

	for i, it := range b.items {
		xid := b.call.first + 1 + uint32(i)
		buf, at := begin(*p, typeBundleAdd, xid)
		buf = append(put32(buf, b.id), 0, 0, 0, byte(bundleFlags))
		buf, err := b.encode(buf, it, xid)
		if err == nil {
			err = end(buf, at)
		}
		*p = buf
		if err != nil {
			return &TxError{Stage: StageBundle, Rejected: []Rejection{{it.op(), it.object, err}}}
		}

		b.res.Messages++
		b.res.Bytes += len(buf) - at
		if len(buf) >= chunk {
			if err := c.send(ctx, p); err != nil {
				return err
			}
			p = getBuffer()
			if b.refused.Load() > maxRejections {
				break
			}
		}
	}

	*p = b.control(*p, bundleClose, b.closeXid())
	return c.send(ctx, p)
}

// control appends a bundle control message.
func (b *bundle) control(buf []byte, typ uint16, index int) []byte {
	buf, at := begin(buf, typeBundleControl, b.call.first+uint32(index))
	buf = put16(put16(put32(buf, b.id), typ), bundleFlags)
	buf[at+3] = headerLen + 8
	return buf
}

// controlNames name the control requests that are answered, by their replies.
var controlNames = map[uint16]string{
	bundleCloseReply:   "close",
	bundleCommitReply:  "commit",
	bundleDiscardReply: "discard",
}

// wait waits for a control reply or for the error in its place.
func (b *bundle) wait(ctx context.Context, want uint16) error {
	p := b.c.startTimer(b.call,
		fmt.Sprintf("the request to %s a bundle of %d messages", controlNames[want], len(b.items)))
	defer p.timer.Stop()
	for {
		select {
		case t := <-b.replies:
			if t == want || t == 0 {
				b.c.answered()
				return nil
			}
		case <-p.timer.C:
			p.check()
		case <-ctx.Done():
			return ctx.Err()
		case <-b.c.done:
			return b.c.err
		}
	}
}

// discardWait bounds the wait for the switch to discard a bundle.
const discardWait = 5 * time.Second

// discard makes the switch discard the bundle. If that message cannot be sent, the switch discards the bundle
// by itself: at the end of the connection, or after 10 s without a message for it.
func (b *bundle) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), discardWait)
	defer cancel()
	p := getBuffer()
	*p = b.control(*p, bundleDiscard, b.discardXid())
	if b.c.send(ctx, p) == nil {
		b.wait(ctx, bundleDiscardReply)
	}
}

// outcomeWait is how much longer than its context Commit waits for the reply to a commit that was sent.
const outcomeWait = 2 * time.Second

func (b *bundle) commit(ctx context.Context) error {
	c := b.c
	p := getBuffer()
	*p = b.control(*p, bundleCommit, b.commitXid())
	if err := c.send(ctx, p); err != nil {
		if c.Err() == nil {
			b.discard()
		}
		return err
	}

	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(outcomeWait, cancel) })()

	err := b.wait(wait, bundleCommitReply)
	b.res.Duration = time.Since(b.start)
	if err != nil {
		if c.Err() == nil { // a late reply must not be taken for the next bundle's
			c.fail(fmt.Errorf("no reply to a commit: %w", err))
		}
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}

	if b.refused.Load() > 0 {
		return b.refusal(StageCommit, nil)
	}
	if n := b.replaced.Load(); n > 0 {
		c.opts.Log.Error("flows of another owner were replaced: they were added during the commit",
			"flows", n)
	}
	return nil
}

// refusal returns the error of a bundle that is not in force. cause is the error that kept it from being
// sent, if any.
func (b *bundle) refusal(stage Stage, cause error) error {
	var tx *TxError
	if cause != nil && !errors.As(cause, &tx) {
		return cause
	}
	if tx == nil {
		tx = &TxError{Stage: stage}
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortStableFunc(b.errs, func(x, y indexed) int { return x.i - y.i })
	last := -1
	for _, e := range b.errs {
		switch {
		case e.i < 1 || e.i > len(b.items) || e.err.Type == errBundle && e.err.Code == codeBundleTimeout:
			if tx.Cause == nil {
				tx.Cause = e.err
			}
		case e.i != last: // of two errors for a message the first counts
			last = e.i
			r := Rejection{b.items[e.i-1].op(), b.items[e.i-1].object, e.err}
			n := len(tx.Rejected)
			if n > 0 && tx.Rejected[n-1].Object == r.Object && tx.Rejected[n-1].Op == r.Op {
				continue // another part of the same group
			}
			tx.Rejected = append(tx.Rejected, r)
		}
	}

	tx.More += b.more
	if len(tx.Rejected) > 0 { // the bundle's own error only says that a message failed
		var se *SwitchError
		if errors.As(tx.Cause, &se) && se.Type == errBundle && se.Code == codeMsgFailed {
			tx.Cause = nil
		}
	}

	return tx
}
