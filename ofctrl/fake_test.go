//go:build linux

package ofctrl

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/wait"
)

// serveFake answers each connection with serve, after the handshake.
func serveFake(t testing.TB, serve func(*ofctrltest.Session)) Target {
	t.Helper()
	return listenFake(t, func(f *ofctrltest.Session) {
		if f.Handshake() == nil {
			serve(f)
		}
	})
}

// listenFake answers each connection with serve, from the first byte on.
func listenFake(t testing.TB, serve func(*ofctrltest.Session)) Target {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	s, err := ofctrltest.Listen(path, ofctrltest.Options{Serve: serve})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return Target{Network: "unix", Address: path}
}

// read is the next message of a connection.
func read(f *ofctrltest.Session) (frame, error) {
	m, err := f.Read()
	return frame(m), err
}

// onEach serves a connection by what is done on each message, until it ends.
func onEach(do func(f *ofctrltest.Session, m frame)) func(*ofctrltest.Session) {
	return func(f *ofctrltest.Session) {
		for m, err := read(f); err == nil; m, err = read(f) {
			do(f, m)
		}
	}
}

func dialFake(t testing.TB, target Target, o Options) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), target, patient(o))
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// patient returns the options with times that a switch on a busy machine does not reach, where a test asks
// for none.
func patient(o Options) Options {
	for _, d := range []*time.Duration{&o.ConnectTimeout, &o.EchoTimeout, &o.AnswerTimeout} {
		*d = cmp.Or(*d, wait.Limit)
	}
	return o
}

// awaitEnd returns why a connection ends.
func awaitEnd(t testing.TB, c *Conn) error {
	t.Helper()
	wait.Closed(t, "the end of the connection", c.Done())
	return c.Err()
}

// A switch that sends nothing for Options.EchoInterval and then for Options.EchoTimeout, and reads or not,
// ends the connection and the calls with it. One that answers echoes does not.
func TestSilent(t *testing.T) {
	t.Parallel()
	o := Options{EchoInterval: 5 * time.Second, EchoTimeout: 10 * time.Second, AnswerTimeout: time.Hour}
	const tick = 1250 * time.Millisecond // a quarter of the shorter one
	for name, reads := range map[string]bool{"reads": true, "does nothing": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := mustPipe(t, func(f *ofctrltest.Session) {
					if reads {
						f.Drain()
					}
					<-t.Context().Done()
				}, o)
				begun := time.Now()
				if _, err := c.Commit(t.Context(), flow.Diff(flow.NewState(), bigState(1000))); !errors.Is(err, ErrSilent) {
					t.Error(err)
				}
				if took := time.Since(begun); took < o.EchoInterval+o.EchoTimeout || took > o.EchoInterval+o.EchoTimeout+2*tick {
					t.Errorf("noticed after %v", took)
				}
				if err := awaitEnd(t, c); !errors.Is(err, ErrSilent) {
					t.Error(err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		c := mustPipe(t, onEach(func(f *ofctrltest.Session, m frame) {
			if m.typ() == typeEchoRequest {
				asked.Add(1)
				f.Write(message(typeEchoReply, m.xid()))
			}
		}), o)
		time.Sleep(time.Hour)
		if err := c.Err(); err != nil || asked.Load() < 100 {
			t.Errorf("%v after %d echo requests", err, asked.Load())
		}
	})
}

// TestAnswersEcho has a switch that asks for echoes, with data.
func TestAnswersEcho(t *testing.T) {
	t.Parallel()
	got := make(chan frame, 1)
	dialFake(t, serveFake(t, func(f *ofctrltest.Session) {
		f.Write(message(typeEchoRequest, 77, 1, 2, 3))
		if m, err := read(f); err == nil {
			got <- m
		}
		f.Drain()
	}), Options{})
	if m := wait.Receive(t, "the answer", got); m.typ() != typeEchoReply || m.xid() != 77 || string(m.body()) != "\x01\x02\x03" {
		t.Errorf("%x", []byte(m))
	}
}

// TestLiar has switches that break the protocol: the connection ends with a clear error, and callers with it.
func TestLiar(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		send []byte
		text string
	}{
		"length 0":         {[]byte{6, 0, 0, 0, 0, 0, 0, 0}, "length of 0"},
		"length 7":         {[]byte{6, 5, 0, 7, 0, 0, 0, 0}, "length of 7"},
		"version 4":        {[]byte{4, 19, 0, 8, 0, 0, 0, 0}, "version 4"},
		"cut off":          {[]byte{6, 19, 0, 100, 0, 0, 0, 0, 1}, "unexpected EOF"},
		"header cut off":   {[]byte{6, 19, 0}, "unexpected EOF"},
		"bad packet-in":    {message(typePacketIn, 0, make([]byte, 20)...), "match of type 0"},
		"short packet-in":  {message(typePacketIn, 0, 1), "cut off"},
		"hangs up":         {nil, "switch closed"},
		"unasked messages": {message(typeBarrierReply, 99), "switch closed"},
	} {
		c := dialFake(t, serveFake(t, func(f *ofctrltest.Session) {
			f.Write(tc.send)
			f.Conn.(*net.UnixConn).CloseWrite()
			f.Drain() // to close with unread data would reset the connection
		}), Options{OnPacketIn: func(*PacketIn) {}})
		if _, err := c.ReadBack(t.Context(), ownFilter); err == nil {
			t.Errorf("%s: read back", name)
		}
		if err := awaitEnd(t, c); !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %q", name, err, tc.text)
		}
	}
}

// TestBadAnswers has switches whose frames are sound and whose contents are not: the call fails and the
// connection lives.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	for name, body := range map[string][]byte{
		"other type":      {0, 99, 0, 0, 0, 0, 0, 0},
		"short":           {0},
		"entry length 0":  append([]byte{0, 1, 0, 0, 0, 0, 0, 0}, make([]byte, 24)...),
		"entry too long":  append([]byte{0, 1, 0, 0, 0, 0, 0, 0, 255, 255}, make([]byte, 24)...),
		"entry of header": append([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 24}, make([]byte, 22)...),
	} {
		c := dialFake(t, serveFake(t, onEach(func(f *ofctrltest.Session, m frame) {
			if m.typ() == typeMultipartRequest {
				f.Write(message(typeMultipartReply, m.xid(), body...))
			}
		})), Options{})
		if _, err := c.ReadBack(t.Context(), ownFilter); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Err(); err != nil {
			t.Errorf("%s: connection ended: %v", name, err)
		}
	}
}

// TestFlood has a switch that answers without end: the asker's context ends the call, and what comes after it
// is read and dropped. It does not run beside other tests, as it looks at the heap.
func TestFlood(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const size, some = 16, 1000 // bytes of an answer, answers at once
	var sent atomic.Int64       // answers
	c := dialFake(t, serveFake(t, onEach(func(f *ofctrltest.Session, m frame) {
		if m.typ() != typeMultipartRequest {
			return
		}
		answers := bytes.Repeat(message(typeMultipartReply, m.xid(), 0, mpFlowDesc, 0, mpMore, 0, 0, 0, 0), some)
		for {
			if _, err := f.Write(answers); err != nil {
				return
			}
			if sent.Add(some) == 10*some {
				cancel()
			}
		}
	})), Options{})
	if err := c.EachForeign(ctx, ownFilter, 0, 1, func(*flow.Flow) {}, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	before, from := live(), sent.Load()
	wait.For(t, "32 MiB more that are read", func() bool { return sent.Load()-from > 32<<20/size })
	if grown := live() - before; grown > 16<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

// live returns how many bytes of the heap are in use.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestErrorFlood has a switch that refuses everything, and twice.
func TestErrorFlood(t *testing.T) {
	t.Parallel()
	target := serveFake(t, func(f *ofctrltest.Session) {
		w := bufio.NewWriterSize(f, 1<<16)
		for {
			m, err := read(f)
			if err != nil {
				return
			}
			switch {
			case m.typ() == typeBundleAdd:
				for range 2 {
					w.Write(message(typeError, m.xid(), 0, 5, 0, 1))
				}
			case m.typ() == typeBundleControl:
				w.Flush()
				f.Write(ofctrltest.BundleDone(ofctrltest.Message(m)))
			}
		}
	})
	c := dialFake(t, target, Options{})
	_, err := c.Commit(t.Context(), flow.Diff(flow.NewState(), bigState(3000)))
	tx := txError(t, err)
	if tx.Stage != StageBundle || len(tx.Rejected) == 0 || len(tx.Rejected) > maxRejections || tx.More == 0 {
		t.Errorf("stage %s, %d rejected and %d more", tx.Stage, len(tx.Rejected), tx.More)
	}
	if tx.Rejected[0].Reason() != "OFPFMFC_TABLE_FULL" {
		t.Error(tx.Rejected[0].Reason())
	}
}

// TestOutcomeUnknown has switches that fail between the commit and its reply.
func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	bundleUntil := func(last uint16, then func(*ofctrltest.Session)) func(*ofctrltest.Session) {
		return onEach(func(f *ofctrltest.Session, m frame) {
			if m.typ() != typeBundleControl {
				return
			}
			if u16(m.body()[4:]) == last {
				then(f)
				return
			}
			f.Write(ofctrltest.BundleDone(ofctrltest.Message(m)))
		})
	}
	hangUp := func(f *ofctrltest.Session) { f.Conn.Close() }
	for name, tc := range map[string]struct {
		last    uint16
		then    func(*ofctrltest.Session)
		unknown bool
	}{
		"hangs up at the commit":   {bundleCommit, hangUp, true},
		"does not answer a commit": {bundleCommit, (*ofctrltest.Session).Drain, true},
		"hangs up before it":       {bundleClose, hangUp, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := mustPipe(t, bundleUntil(tc.last, tc.then), Options{})
				_, err := c.Commit(t.Context(), flow.Diff(flow.NewState(), bigState(2)))
				if err == nil || errors.Is(err, ErrOutcomeUnknown) != tc.unknown {
					t.Error(err)
				}
				if awaitEnd(t, c) == nil {
					t.Error("the connection goes on")
				}
			})
		})
	}
}

// TestHandshake has switches that do not come to a hello of 1.5.
func TestHandshake(t *testing.T) {
	t.Parallel()
	var version *VersionError
	for name, tc := range map[string]struct {
		serve func(*ofctrltest.Session)
		check func(error) bool
	}{
		"1.0 and 1.3": {func(f *ofctrltest.Session) { f.Write(message(typeHello, 1, 0, 1, 0, 8, 0, 0, 0, 1<<4|1<<1)); f.Drain() }, func(err error) bool {
			return errors.As(err, &version) && strings.Join(version.Offers, " ") == "1.0 1.3"
		}},
		"old hello": {func(f *ofctrltest.Session) { f.Write([]byte{1, 0, 0, 8, 0, 0, 0, 1}); f.Drain() }, func(err error) bool { return errors.As(err, &version) && strings.Join(version.Offers, " ") == "1.0" }},
		"hello refused": {func(f *ofctrltest.Session) {
			f.Write(append([]byte{4, 1, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0}, "no\x00!"...))
			f.Drain()
		}, func(err error) bool { return errors.As(err, &version) && version.Text == "no!" }},
		"refused later": {func(f *ofctrltest.Session) {
			f.Write(message(typeHello, 1, 0, 1, 0, 8, 0, 0, 0, 1<<6))
			f.Write([]byte{4, 1, 0, 12, 0, 0, 0, xidHello, 0, 0, 0, 0})
			f.Drain()
		}, func(err error) bool { return errors.As(err, &version) }},
		"not OpenFlow": {func(f *ofctrltest.Session) { f.Write([]byte("HTTP/1.0 400 Bad Request\r\n\r\n")); f.Drain() }, func(err error) bool { return err != nil && !errors.As(err, &version) }},
		"hangs up":     {func(f *ofctrltest.Session) {}, func(err error) bool { return err != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if _, err := dialPipe(t, tc.serve, Options{Bridge: "br-int"}); !tc.check(err) {
					t.Error(err)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	silent := listenFake(t, func(f *ofctrltest.Session) { f.Read(); cancel(); f.Drain() })
	if _, err := Dial(ctx, silent, patient(Options{})); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// goroutines counts the goroutines that run code of this package's connections.
func goroutines() int {
	buf := make([]byte, 1<<20)
	n := 0
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "ofctrl.(*Conn)") || strings.Contains(g, "ofctrl.(*events)") || strings.Contains(g, "ofctrl.(*Client)") {
			n++
		}
	}
	return n
}
