package ofctrl

import (
	"context"
	"fmt"
	"sync"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Multipart types (OpenFlow 1.5.1 §7.3.5).
const (
	mpFlowDesc   = 1
	mpAggregate  = 2
	mpTable      = 3
	mpPortStats  = 4
	mpGroupStats = 6
	mpGroupDesc  = 7
	mpMeterStats = 9
	mpMeterDesc  = 10
	mpPortDesc   = 13

	mpMore      = 1 // OFPMPF_REPLY_MORE
	mpHeaderLen = 8
)

// mpNames are the multipart types' names, for errors.
var mpNames = map[uint16]string{
	mpFlowDesc:    "flow descriptions",
	mpTable:       "table statistics",
	mpFlowMonitor: "a flow monitor",
	mpAggregate:   "the number of flows",
	mpGroupStats:  "group statistics",
	mpGroupDesc:   "group descriptions",
	mpMeterDesc:   "meter descriptions",
	mpMeterStats:  "meter statistics",
	mpPortDesc:    "port descriptions",
	mpPortStats:   "port statistics",
}

// maxAnswer bounds what one question may bring in, in bytes; a flow takes some 400.
var maxAnswer = 512 << 20 // changed by tests

// question is a run of multipart requests of one type. each gets the bodies of the replies, on the reader's
// goroutine, in order.
type question struct {
	typ   uint16
	left  int // requests whose last reply has not come
	bytes int
	each  func(body []byte) error
	err   error         // written by the reader, read once done is closed
	done  chan struct{} // closed when all replies have come or one was bad
	over  bool          // only the reader looks

	mu   sync.Mutex // held while each runs, so that an asker that gives up does not race with it
	quit bool       // the asker is gone: each must not be called any more; under mu
}

// receive implements sink. A bad answer fails the question and not the connection: its frame was sound.
func (q *question) receive(_ int, f frame) (err error) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.over || q.quit {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			q.end(fmt.Errorf("%w: multipart reply cannot be decoded: %v", ErrProtocol, p))
		}
	}()

	b := f.body()
	switch {
	case f.typ() == typeError:
		e, _ := parseError(f)
		q.end(e)
		return nil
	case f.typ() != typeMultipartReply:
		return nil
	case len(b) < mpHeaderLen || u16(b) != q.typ:
		q.end(fmt.Errorf("%w: multipart reply of another type", ErrProtocol))
		return nil
	}

	if q.bytes += len(f); q.bytes > maxAnswer {
		q.end(fmt.Errorf("%w: more than %d bytes", ErrTooMuch, maxAnswer))
		return nil
	}
	if err := q.each(b[mpHeaderLen:]); err != nil {
		q.end(err)
		return nil
	}

	if u16(b[2:])&mpMore == 0 {
		if q.left--; q.left == 0 {
			q.end(nil)
		}
	}
	return nil
}

func (q *question) end(err error) {
	if !q.over {
		q.over = true
		q.err = err
		close(q.done)
	}
}

// ask sends n multipart requests of a type, whose bodies are appended by add, and hands the bodies of the
// replies to each. When it returns each is not running and will not run again.
func (c *Conn) ask(
	ctx context.Context, typ uint16, n int,
	add func(b []byte, i int) ([]byte, error),
	each func(body []byte) error,
) error {
	if n == 0 {
		return nil
	}

	q := &question{typ: typ, left: n, each: each, done: make(chan struct{})}
	k := c.register(n, q)
	defer func() {
		c.unregister(k)
		q.mu.Lock()
		q.quit = true
		q.mu.Unlock()
	}()

	err := c.sendAll(ctx, n, func(b []byte, i int) ([]byte, error) {
		b, at := begin(b, typeMultipartRequest, k.first+uint32(i))
		b, err := add(append(put16(b, typ), 0, 0, 0, 0, 0, 0), i)
		if err == nil {
			err = end(b, at)
		}
		return b, err
	})
	if err != nil {
		return err
	}

	if err := c.await(ctx, k, "a request for "+mpNames[typ], q.done); err != nil {
		return err
	}
	return q.err
}

// flowRequest appends the body of a request for flows of a table under a cookie (§7.3.5,
// ofp_flow_desc_request).
func flowRequest(b []byte, table uint8, cookie, mask uint64) ([]byte, error) {
	b = append(b, table, 0, 0, 0)
	b = put32(put32(b, flow.PortAny), groupAny)
	b = append(b, 0, 0, 0, 0)
	b = put64(put64(b, cookie), mask)
	return match(b, &flow.Match{}, false)
}

// idRequest appends the body of a request for a group or meter.
func idRequest(b []byte, id uint32) []byte { return append(put32(b, id), 0, 0, 0, 0) }
