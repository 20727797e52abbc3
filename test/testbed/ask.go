//go:build linux

package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/wait"
)

// Answer is what a server said.
type Answer struct {
	// Pod is the name of the host that answered.
	Pod string
	// Client is the client's address as the server saw it.
	Client netip.AddrPort
	// Bytes is the size of the datagram as it reached the server; UDP only.
	Bytes int
	// Size is the size of the answer in bytes; UDP only.
	Size int
}

// AskOptions refine a question.
type AskOptions struct {
	DialOptions
	// Payload is the datagram to send; UDP only. None means "?".
	Payload []byte
	// Until, if set, bounds the wait for an answer: it is called once the question has been sent, and silence until it returns is
	// ErrTimeout. Its error is the question's, unless an answer or a refusal has come. A drop is shown by an Until that asks a
	// control by the same path and is answered: the question was sent before.
	Until func(ctx context.Context) error
}

// Ask makes one TCP connection, or sends one datagram (udp) or one INIT (sctp),
// and returns who answered. The error wraps ErrRefused, ErrTimeout,
// ErrUnreachable or ErrBroken where it is one of them. It waits for wait.Limit at
// most; who expects silence ends ctx or sets AskOptions.Until.
func (h *Host) Ask(ctx context.Context, proto, addr string) (Answer, error) {
	return h.AskWith(ctx, proto, addr, AskOptions{})
}

// AskWith is Ask with options.
func (h *Host) AskWith(ctx context.Context, proto, addr string, o AskOptions) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	var a Answer
	var err, untilErr error
	var until sync.WaitGroup
	o.sent = func() {
		if o.Until != nil {
			until.Go(func() {
				untilErr = o.Until(ctx)
				cancel()
			})
		}
	}

	switch strings.ToLower(proto) {
	case "tcp":
		a, err = h.askTCP(ctx, addr, o)
	case "udp":
		a, err = h.askUDP(ctx, addr, o)
	case "sctp":
		a, err = h.askSCTP(ctx, addr, o)
	default:
		err = errors.New("unknown protocol")
	}

	if !errors.Is(err, ErrTimeout) {
		cancel() // an answer, whatever the control says
	}
	until.Wait()
	if errors.Is(err, ErrTimeout) && untilErr != nil {
		err = untilErr
	}
	if err != nil {
		return Answer{}, fmt.Errorf("testbed: %s: %s %s: %w", h.Name, proto, addr, err)
	}
	return a, nil
}

func (h *Host) askTCP(ctx context.Context, addr string, o AskOptions) (Answer, error) {
	c, err := h.DialTCP(ctx, addr, o.DialOptions)
	if err != nil {
		return Answer{}, errors.Unwrap(err) // AskWith says the rest
	}
	defer c.Close()
	defer boundIO(ctx, c)()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return Answer{}, broken(err)
	}
	return parseAnswer(line)
}

func (h *Host) askUDP(ctx context.Context, addr string, o AskOptions) (Answer, error) {
	sent := o.sent
	o.sent = nil // nothing has been sent when the socket is connected
	c, err := h.DialUDP(ctx, addr, o.DialOptions)
	if err != nil {
		return Answer{}, errors.Unwrap(err)
	}
	defer c.Close()
	defer boundIO(ctx, c)()
	payload := o.Payload
	if payload == nil {
		payload = []byte("?")
	}
	// EPERM: rules of the host's own took the datagram. Whether they also answered it shows when reading.
	if _, err := c.Write(payload); err != nil && !errors.Is(err, unix.EPERM) {
		return Answer{}, classify(err)
	}
	sent()
	buf := make([]byte, 65536)
	n, err := c.Read(buf)
	if err != nil {
		return Answer{}, classify(err)
	}
	a, err := parseAnswer(string(buf[:n]))
	a.Size = n
	return a, err
}

// boundIO makes reads and writes fail when ctx ends, until it is undone.
func boundIO(ctx context.Context, c net.Conn) (undo func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}

// broken classifies an error after a connection was made. Silence is a timeout.
func broken(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: connected, but %w", ErrTimeout, err)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

func parseAnswer(line string) (Answer, error) {
	f := strings.Fields(line)
	if len(f) < 2 {
		return Answer{}, fmt.Errorf("odd answer %q", line)
	}
	client, err := netip.ParseAddrPort(f[1])
	if err != nil {
		return Answer{}, fmt.Errorf("odd answer %q: %w", line, err)
	}
	a := Answer{Pod: f[0], Client: client}
	if len(f) > 2 {
		if a.Bytes, err = strconv.Atoi(f[2]); err != nil {
			return Answer{}, fmt.Errorf("odd answer %q: %w", line, err)
		}
	}
	return a, nil
}

// Many asks n times over TCP, at most concurrency at once, and counts who
// answered. The connections end with a reset, so that ports do not run out.
// There is one error for each question without answer.
func (h *Host) Many(ctx context.Context, n, concurrency int, addr string) (map[string]int, []error) {
	var mu sync.Mutex // protects who and errs
	who, errs := map[string]int{}, []error(nil)
	var wg sync.WaitGroup
	next := make(chan struct{})
	for range min(n, max(1, concurrency)) {
		wg.Go(func() { // ends when next is closed
			for range next {
				a, err := h.AskWith(ctx, "tcp", addr, AskOptions{DialOptions: DialOptions{Reset: true}})
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					who[a.Pod]++
				}
				mu.Unlock()
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	return who, errs
}

// Held is a long-lived connection to a server of ServeTCP. Its methods must not
// be called at the same time, except Close.
type Held struct {
	// Who answered, and the client's address as that server saw it.
	Who    string
	Client netip.AddrPort

	conn   net.Conn
	r      *bufio.Reader
	n      int
	forget func()
	once   sync.Once
}

// Hold opens a connection and keeps it. The caller closes it; the bed's end does
// so too.
func (h *Host) Hold(ctx context.Context, addr string, o DialOptions) (*Held, error) {
	c, err := h.DialTCP(ctx, addr, o)
	if err != nil {
		return nil, err
	}
	k := &Held{conn: c, r: bufio.NewReader(c)}
	if k.forget, err = h.own(c); err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(wait.Limit))
	line, err := k.r.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("testbed: %s: hold %s: %w", h.Name, addr, broken(err)), k.Close())
	}
	a, err := parseAnswer(line)
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	k.Who, k.Client = a.Pod, a.Client
	return k, nil
}

// Check makes a round trip over the connection. After a failure the connection is no longer usable.
func (k *Held) Check() error { return k.CheckUntil(nil) }

// CheckUntil is Check. If until is not nil it is called once the line has been sent, and bounds the wait for the answer as
// AskOptions.Until does.
func (k *Held) CheckUntil(until func() error) error {
	k.n++
	line := fmt.Sprintf("check %d\n", k.n)
	_ = k.conn.SetDeadline(time.Now().Add(wait.Limit))
	if _, err := io.WriteString(k.conn, line); err != nil {
		return broken(err)
	}

	var untilErr error
	var ended sync.WaitGroup
	if until != nil {
		ended.Go(func() {
			untilErr = until()
			_ = k.conn.SetDeadline(time.Unix(1, 0))
		})
	}
	got, err := k.r.ReadString('\n')
	ended.Wait()
	if errors.Is(err, os.ErrDeadlineExceeded) && untilErr != nil {
		return untilErr
	}
	if err != nil {
		return broken(err)
	}
	if got != line {
		return fmt.Errorf("%w: sent %q, got %q", ErrBroken, line, got)
	}
	return nil
}

// Conn is the connection itself.
func (k *Held) Conn() net.Conn { return k.conn }

// Close closes the connection. It may be called again.
func (k *Held) Close() (err error) {
	k.once.Do(func() {
		k.forget()
		err = k.conn.Close()
	})
	return err
}
