//go:build linux

package ofctrl

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

// serveUntil is a switch with one group that answers everything until a message for which stop holds, and echoes alone from then on.
func serveUntil(stop func(frame) bool) func(*ofctrltest.Session) {
	return func(f *ofctrltest.Session) {
		group := make([]byte, 16) // ofp_group_mod (OpenFlow 1.5.1 §7.3.4.3): adds group 7
		group[7] = 7
		if f.Answer(ofctrltest.NewMessage(byte(typeGroupMod), 0, group...)) != nil {
			return
		}
		for deaf := false; ; {
			m, err := read(f)
			if err != nil {
				return
			}
			if deaf = deaf || stop(m); !deaf || m.typ() == typeEchoRequest {
				f.Answer(ofctrltest.Message(m))
			}
		}
	}
}

// A switch that answers echoes and leaves a question without an answer does not hold up who asked: the connection ends, and the
// error names the question. It is so at every stage.
func TestAnswersEchoesOnly(t *testing.T) {
	t.Parallel()
	multipart := func(typ uint16) func(frame) bool {
		return func(m frame) bool { return m.typ() == typeMultipartRequest && u16(m.body()) == typ }
	}
	control := func(typ uint16) func(frame) bool {
		return func(m frame) bool { return m.typ() == typeBundleControl && u16(m.body()[4:]) == typ }
	}
	is := func(typ msgType) func(frame) bool { return func(m frame) bool { return m.typ() == typ } }
	filter := ownFilter
	filter.Tables, filter.IsMeter = []uint8{1}, func(id uint32) bool { return id == 1 }
	if filter.GroupHi == 0 {
		t.Fatal("the filter picks no groups")
	}
	filter.GroupLo = 1
	read := func(ctx context.Context, c *Conn) error { _, err := c.ReadBack(ctx, filter); return err }
	commit := func(d *flow.Delta) func(context.Context, *Conn) error {
		return func(ctx context.Context, c *Conn) error { _, err := c.Commit(ctx, d); return err }
	}
	flows := flow.Diff(flow.NewState(), bigState(2))
	many := flow.Diff(flow.NewState(), bigState(300))
	for _, tc := range []struct {
		name string
		stop func(frame) bool
		ask  func(context.Context, *Conn) error
		text string
	}{
		{"flows", multipart(mpFlowDesc), read, "flow descriptions"},
		{"groups", multipart(mpGroupStats), read, "group statistics"},
		{"one group", multipart(mpGroupDesc), read, "group descriptions"},
		{"meters", multipart(mpMeterDesc), read, "meter descriptions"},
		{"count", multipart(mpAggregate), func(ctx context.Context, c *Conn) error { _, err := c.FlowCount(ctx, 1, 1); return err }, "number of flows"},
		{"counters", multipart(mpFlowDesc), func(ctx context.Context, c *Conn) error { _, err := c.TableCounters(ctx, 1, 1, 1); return err }, "flow descriptions"},
		{"group counters", multipart(mpGroupStats), func(ctx context.Context, c *Conn) error { _, err := c.GroupCounters(ctx, 1, 2); return err }, "group statistics"},
		{"bundle open", control(bundleOpen), commit(flows), "close a bundle"},
		{"bundle add", is(typeBundleAdd), commit(many), "close a bundle"},
		{"bundle close", control(bundleClose), commit(flows), "close a bundle"},
		{"bundle commit", control(bundleCommit), commit(flows), "commit a bundle"},
		{"meter", is(typeMeterMod), commit(&flow.Delta{SetMeters: []flow.Meter{{ID: 1, Rate: 1, Burst: 1}}}), "a barrier after 1 changes of meters"},
		{"flush", is(typeExperimenter), func(ctx context.Context, c *Conn) error {
			return c.Flush(ctx, []flow.CTFilter{{Zone: 1, IPProto: 17, Dst: probeEnd}})
		}, "a barrier after 1 deletions of conntrack entries"},
		{"probe", is(typeBarrierRequest), func(ctx context.Context, c *Conn) error { return c.ProbeCTFlush(ctx) }, "a barrier after 1 deletions of connections"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := mustPipe(t, serveUntil(tc.stop), Options{})
				begun := time.Now()
				err := tc.ask(t.Context(), c)
				took := time.Since(begun)
				if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), tc.text) || took != c.opts.AnswerTimeout {
					t.Errorf("after %v: %v, want %q", took, err, tc.text)
				}
				if ended := awaitEnd(t, c); !errors.Is(ended, ErrNoAnswer) {
					t.Errorf("the connection ended with %v", ended)
				}
				if tc.name == "bundle commit" != errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("outcome unknown: %v", err)
				}
			})
		})
	}
	for name, serve := range map[string]func(*ofctrltest.Session){
		"hello": serveUntil(func(frame) bool { return true }),
		"features": func(f *ofctrltest.Session) {
			f.Write(message(typeHello, 1, 0, 1, 0, 8, 0, 0, 0, 1<<6))
			serveUntil(is(typeFeaturesRequest))(f)
		},
		"barrier": func(f *ofctrltest.Session) {
			f.Write(message(typeHello, 1, 0, 1, 0, 8, 0, 0, 0, 1<<6))
			serveUntil(is(typeBarrierRequest))(f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := Options{ConnectTimeout: time.Minute}
				begun := time.Now()
				_, err := dialPipe(t, serve, o)
				took := time.Since(begun)
				if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), name) || took != o.ConnectTimeout {
					t.Errorf("after %v: %v, want %q", took, err, name)
				}
			})
		})
	}
}

// Answers sees whether the switch answers an echo request, and ends with the connection.
func TestAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deaf atomic.Bool
		c := mustPipe(t, onEach(func(f *ofctrltest.Session, m frame) {
			if !deaf.Load() && m.typ() == typeEchoRequest {
				f.Answer(ofctrltest.Message(m))
			}
		}), Options{EchoInterval: time.Hour, EchoTimeout: time.Hour})
		answers := func() (yes bool, took time.Duration) {
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begun := time.Now()
			return c.Answers(ctx), time.Since(begun)
		}
		before := c.Heard()
		if yes, took := answers(); !yes || took > answersInterval || !c.Heard().After(before) {
			t.Errorf("the switch answers: %t after %v; it was heard last at %v", yes, took, c.Heard())
		}
		deaf.Store(true)
		last := c.Heard()
		if yes, took := answers(); yes || took != time.Minute || !c.Heard().Equal(last) {
			t.Errorf("the switch has not answered since %v: %t after %v; it was heard at %v", last, yes, took, c.Heard())
		}
		time.AfterFunc(2*time.Second, func() { c.Close() })
		if yes, took := answers(); yes || took != time.Second {
			t.Errorf("the connection is closed: %t after %v", yes, took)
		}
	})
}

// A switch that does not read, but sends enough to count as alive, ends the connection too.
func TestReadsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := mustPipe(t, func(f *ofctrltest.Session) {
			for {
				if _, err := f.Write(message(typeHello, 0)); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}, Options{})
		begun := time.Now()
		_, err := c.Commit(t.Context(), flow.Diff(flow.NewState(), bigState(2000)))
		if took := time.Since(begun); !errors.Is(err, ErrNoAnswer) || took != c.opts.AnswerTimeout {
			t.Errorf("after %v: %v", took, err)
		}
		time.Sleep(time.Minute) // the switch notices
	})
}

// An answer that comes slowly, but steadily, is waited for; one without end is not.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var answered atomic.Int32
		o := Options{AnswerTimeout: 20 * time.Second, OnAnswer: func() { answered.Add(1) }}
		serve := func(parts int) func(*ofctrltest.Session) {
			return onEach(func(f *ofctrltest.Session, m frame) {
				if m.typ() != typeMultipartRequest || u16(m.body()) != mpFlowDesc {
					f.Answer(ofctrltest.Message(m))
					return
				}
				for i := 1; i != parts; i++ {
					time.Sleep(o.AnswerTimeout / 4)
					if _, err := f.Write(message(typeMultipartReply, m.xid(), 0, mpFlowDesc, 0, mpMore, 0, 0, 0, 0)); err != nil {
						return
					}
				}
				f.Answer(ofctrltest.Message(m))
			})
		}
		c := mustPipe(t, serve(12), o)
		if _, err := c.TableCounters(t.Context(), 1, 1, 1); err != nil {
			t.Error(err)
		}
		if answered.Load() == 0 {
			t.Error("nothing was reported to be answered")
		}
		c = mustPipe(t, serve(-1), o)
		begun := time.Now()
		_, err := c.TableCounters(t.Context(), 1, 1, 1)
		took := time.Since(begun)
		if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "completely") || took != maxAnswerTimeouts*o.AnswerTimeout {
			t.Errorf("after %v: %v", took, err)
		}
		time.Sleep(o.AnswerTimeout) // the switch notices
	})
}
