package ofctrl

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// sink takes the replies to a run of transaction ids. Only the reader calls receive, in the order of the
// messages. i is the transaction id as an index into the run. The frame is valid during the call only. An
// error ends the connection.
type sink interface{ receive(i int, f frame) error }

// call is a run of consecutive transaction ids whose replies a caller waits for.
type call struct {
	first, n uint32
	sink     sink
	// lastReply is the time of its last reply, or of its registration, in nanoseconds after Conn.epoch.
	lastReply atomic.Int64
}

// register returns n consecutive transaction ids whose replies go to s, until unregister. An id is never 0,
// as switches use that for unsolicited messages, nor xidPacketOut.
func (c *Conn) register(n int, s sink) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if uint64(c.nextXid)+uint64(n) > math.MaxUint32 {
		c.nextXid = 1
	}
	k := &call{first: c.nextXid, n: uint32(n), sink: s}
	k.lastReply.Store(int64(time.Since(c.epoch)))
	c.nextXid += uint32(n)
	c.calls = append(c.calls, k)
	return k
}

// unregister ends k. Replies that arrive later are dropped.
func (c *Conn) unregister(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = slices.DeleteFunc(c.calls, func(other *call) bool { return other == k })
}

// sinkOf returns the sink that waits for a transaction id, and the id's index in its run. It records the
// time, because a message for a call is progress.
func (c *Conn) sinkOf(xid uint32) (sink, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if xid-k.first < k.n {
			k.lastReply.Store(int64(time.Since(c.epoch)))
			return k.sink, int(xid - k.first)
		}
	}
	return nil, 0
}

// maxAnswerTimeouts is how many AnswerTimeouts an answer may take altogether, however steadily it comes in.
const maxAnswerTimeouts = 10

// answerTimer ends the connection if the switch leaves a call without an answer: if no message for it arrives
// for Options.AnswerTimeout, or the answer is not complete after maxAnswerTimeouts times that. Keep-alive
// does not detect such a switch, because it may still answer echoes.
type answerTimer struct {
	c     *Conn
	k     *call
	what  string // the question, for the error
	since time.Duration
	timer *time.Timer
}

// startTimer starts the time limit for the answer to a request that was just sent. The caller must stop the
// timer.
func (c *Conn) startTimer(k *call, what string) *answerTimer {
	since := time.Since(c.epoch)
	k.lastReply.Store(int64(since)) // the time spent sending does not count
	return &answerTimer{c, k, what, since, time.NewTimer(c.opts.AnswerTimeout)}
}

// check is called when the timer fires.
func (p *answerTimer) check() {
	now := time.Since(p.c.epoch)
	quiet, all := now-time.Duration(p.k.lastReply.Load()), now-p.since
	switch limit := p.c.opts.AnswerTimeout; {
	case quiet >= limit:
		p.c.fail(fmt.Errorf("%w %s for %v", ErrNoAnswer, p.what, limit))
	case all >= maxAnswerTimeouts*limit:
		p.c.fail(fmt.Errorf("%w %s completely for %v", ErrNoAnswer, p.what, maxAnswerTimeouts*limit))
	default:
		p.timer.Reset(min(limit-quiet, maxAnswerTimeouts*limit-all))
	}
}

// batch is a run of n requests that have no replies of their own, ended by a barrier: it collects the errors.
type batch struct {
	n    int
	errs map[int]*SwitchError // by index; written by the reader, read once done is closed
	done chan struct{}
	over bool // the barrier was answered; used by the reader only
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

// doBatch sends n requests and a barrier, and returns the errors by index. add appends request i with
// transaction id xid. what names the requests in errors.
func (c *Conn) doBatch(
	ctx context.Context, what string, n int,
	add func(b []byte, i int, xid uint32) ([]byte, error),
) (map[int]*SwitchError, error) {
	s := &batch{n: n, errs: map[int]*SwitchError{}, done: make(chan struct{})}
	k := c.register(n+1, s)
	defer c.unregister(k)
	err := c.sendAll(ctx, n+1, func(b []byte, i int) ([]byte, error) {
		if i == n {
			return append(b, message(typeBarrierRequest, k.first+uint32(n))...), nil
		}
		return add(b, i, k.first+uint32(i))
	})
	if err != nil {
		return nil, err
	}
	if err := c.await(ctx, k, fmt.Sprintf("a barrier after %d %s", n, what), s.done); err != nil {
		return nil, err
	}
	return s.errs, nil
}

// await waits for done, the end of ctx or the end of the connection. If the switch does not answer in time,
// it ends the connection. what names the request in errors.
func (c *Conn) await(ctx context.Context, k *call, what string, done <-chan struct{}) error {
	p := c.startTimer(k, what)
	defer p.timer.Stop()
	for {
		select {
		case <-done:
			c.answered()
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-p.timer.C:
			p.check()
		case <-c.done:
			select {
			case <-done: // both have ended: the answer counts
				return nil
			default:
				return c.err
			}
		}
	}
}

// answered records that the switch has answered a question.
func (c *Conn) answered() {
	if c.opts.OnAnswer != nil {
		c.opts.OnAnswer()
	}
}
