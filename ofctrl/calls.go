package ofctrl

import (
	"context"
	"math"
	"slices"
)

// sink takes the replies to a run of transaction ids. Only the reader calls receive, in the order of the
// messages. i is the transaction id as an index into the run. The frame is valid during the call only. An
// error ends the connection.
type sink interface{ receive(i int, f frame) error }

// call is a run of transaction ids that somebody waits for.
type call struct {
	first, n uint32
	sink     sink
}

// register gives n consecutive transaction ids whose replies go to s, until unregister. An id is never 0,
// as switches use that for what nobody asked for.
func (c *Conn) register(n int, s sink) (first uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if uint64(c.nextXid)+uint64(n) > math.MaxUint32 {
		c.nextXid = 1
	}
	first = c.nextXid
	c.nextXid += uint32(n)
	c.calls = append(c.calls, call{first: first, n: uint32(n), sink: s})
	return first
}

// unregister ends it. Replies that come later are dropped.
func (c *Conn) unregister(first uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = slices.DeleteFunc(c.calls, func(k call) bool { return k.first == first })
}

// sinkOf finds who waits for a transaction id, and its index there.
func (c *Conn) sinkOf(xid uint32) (sink, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if xid-k.first < k.n {
			return k.sink, int(xid - k.first)
		}
	}
	return nil, 0
}

// batch is a run of n requests that have no replies of their own, ended by a barrier: it collects the errors.
type batch struct {
	n    int
	errs map[int]*SwitchError // by index; written by the reader, read once done is closed
	done chan struct{}
	over bool // only the reader looks
}

func (b *batch) receive(i int, f frame) error {
	switch {
	case b.over:
		return nil
	case f.typ() == typeError:
		e, _ := parseError(f)
		b.errs[i] = e
	case f.typ() != typeBarrierReply:
		return nil
	}
	if i == b.n {
		b.over = true
		close(b.done)
	}
	return nil
}

// doBatch sends n requests, each appended by add under the transaction id it gets, and a barrier. It gives
// the errors by index.
func (c *Conn) doBatch(ctx context.Context, n int, add func(b []byte, i int, xid uint32) ([]byte, error)) (map[int]*SwitchError, error) {
	s := &batch{n: n, errs: map[int]*SwitchError{}, done: make(chan struct{})}
	first := c.register(n+1, s)
	defer c.unregister(first)
	p := getBuffer()
	var err error
	for i := range n {
		if *p, err = add(*p, i, first+uint32(i)); err != nil {
			return nil, err
		}
		if len(*p) >= chunk {
			if err := c.send(ctx, p); err != nil {
				return nil, err
			}
			p = getBuffer()
		}
	}
	*p = append(*p, message(typeBarrierRequest, first+uint32(n))...)
	if err := c.send(ctx, p); err != nil {
		return nil, err
	}
	if err := c.await(ctx, s.done); err != nil {
		return nil, err
	}
	return s.errs, nil
}

// await waits for done, the context or the end of the connection.
func (c *Conn) await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		select {
		case <-done: // both: what was answered counts
			return nil
		default:
			return c.err
		}
	}
}
