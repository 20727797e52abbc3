//go:build linux

package ofctrl

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/ofctrl/ofctrltest"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// heapPeak samples the size of the heap until stop is called. stop returns the largest growth, in bytes.
func heapPeak() (stop func() int64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, most := int64(m.HeapAlloc), int64(m.HeapAlloc)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ended by stop
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
				runtime.ReadMemStats(&m)
				most = max(most, int64(m.HeapAlloc))
			}
		}
	}()
	return func() int64 {
		close(quit)
		<-done
		return most - before
	}
}

// A flood of packet-ins neither delays a transaction nor grows the heap: packet-ins that the handler cannot keep up with are dropped.
func TestPacketInFloodDuringCommit(t *testing.T) {
	t.Parallel()
	var packetIn frame
	for _, f := range seedFrames(t) {
		if f.typ() == typePacketIn {
			packetIn = f
		}
	}
	if packetIn == nil {
		t.Fatal("no packet-in among the frames of testdata")
	}
	target := serveFake(t, func(f *ofctrltest.Session) {
		w := bufio.NewWriterSize(f, 1<<16)
		for {
			m, err := read(f)
			if err != nil {
				return
			}
			for range 20 {
				w.Write(packetIn)
			}
			if m.typ() == typeBundleControl {
				w.Flush()
				f.Write(ofctrltest.BundleDone(ofctrltest.Message(m)))
			}
		}
	})
	var handled atomic.Int64
	c := dialFake(t, target, Options{OnPacketIn: func(*PacketIn) {
		handled.Add(1)
		time.Sleep(time.Millisecond)
	}})
	peak := heapPeak()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Commit(ctx, flow.Diff(flow.NewState(), bigState(5000))); err != nil {
		t.Error(err)
	}
	if grown := peak(); grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if c.PacketInDrops() == 0 || handled.Load() == 0 {
		t.Errorf("%d packets dropped, %d handled", c.PacketInDrops(), handled.Load())
	}
}

// Replies with the wrong transaction id are ignored: no call accepts a reply to another request, and every call returns.
func TestWrongXids(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]func(xid uint32) uint32{
		"none":        func(uint32) uint32 { return 0 },
		"the next":    func(x uint32) uint32 { return x + 1 },
		"the one ago": func(x uint32) uint32 { return x - 1 },
		"nobody's":    func(x uint32) uint32 { return x ^ 0x80000000 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := serveFake(t, func(f *ofctrltest.Session) {
				for {
					m, err := read(f)
					if err != nil {
						return
					}
					x := wrong(m.xid())
					switch m.typ() {
					case typeMultipartRequest:
						b := make([]byte, 8)
						copy(b, m.body()[:2])
						f.Write(message(typeMultipartReply, x, b...))
					case typeBundleControl:
						body := append([]byte(nil), m.body()...)
						body[5]++
						f.Write(message(typeBundleControl, x, body...))
					case typeBundleAdd:
						f.Write(message(typeError, x, 0, 5, 0, 1))
					case typeEchoRequest:
						f.Write(message(typeEchoReply, x))
					default:
						f.Write(message(typeBarrierReply, x))
					}
				}
			})
			c := dialFake(t, target, Options{AnswerTimeout: 300 * time.Millisecond})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			if s, err := c.ReadBack(ctx, ownFilter); err == nil {
				t.Errorf("%s: read back %v", name, s.State)
			}
			cancel()
			c = dialFake(t, target, Options{AnswerTimeout: 300 * time.Millisecond})
			ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
			if _, err := c.Commit(ctx, flow.Diff(flow.NewState(), bigState(10))); err == nil {
				t.Errorf("%s: committed", name)
			}
			cancel()
		})
	}
}

// An endless multipart reply fails with ErrTooMuch before it exhausts memory. The test is not parallel, because it changes package
// variables.
func TestAnswersWithoutEnd(t *testing.T) {
	defer func(objects, answer int) { maxObjects, maxAnswer = objects, answer }(maxObjects, maxAnswer)
	// Flows of nkp's with an empty match and no instructions (OpenFlow 1.5.1 §7.3.5.2, ofp_flow_desc).
	flows := func(n uint32) []byte {
		d := make([]byte, 40)
		binary.BigEndian.PutUint16(d, 40)
		d[4] = 1
		binary.BigEndian.PutUint16(d[6:], uint16(n))
		binary.BigEndian.PutUint64(d[16:], ownFilter.Cookie|uint64(n))
		binary.BigEndian.PutUint16(d[24:], 1) // OFPMT_OXM
		binary.BigEndian.PutUint16(d[26:], 4)
		binary.BigEndian.PutUint16(d[34:], 4) // an empty ofp_stats
		return d
	}
	// Statistics of nkp's groups without buckets (§7.3.5.8, ofp_group_stats).
	groups := func(n uint32) []byte {
		d := make([]byte, groupStatsLen)
		binary.BigEndian.PutUint16(d, groupStatsLen)
		binary.BigEndian.PutUint32(d[4:], ownFilter.GroupLo+n)
		return d
	}
	onlyGroups := Filter{GroupLo: ownFilter.GroupLo, GroupHi: ownFilter.GroupLo + 1<<28}
	for _, tc := range []struct {
		name            string
		objects, answer int
		filter          Filter
		typ             uint16
		object          func(n uint32) []byte
	}{
		{"flows", 100_000, maxAnswer, ownFilter, mpFlowDesc, flows},
		{"groups", 100_000, maxAnswer, onlyGroups, mpGroupStats, groups},
		{"bytes", 1 << 30, 8 << 20, ownFilter, mpFlowDesc, flows},
	} {
		t.Run(tc.name, func(t *testing.T) {
			maxObjects, maxAnswer = tc.objects, tc.answer
			target := serveFake(t, func(f *ofctrltest.Session) {
				for {
					m, err := read(f)
					if err != nil {
						return
					}
					if m.typ() != typeMultipartRequest {
						continue
					}
					for n := uint32(0); ; {
						body := []byte{0, byte(tc.typ), 0, mpMore, 0, 0, 0, 0}
						for range 1000 {
							n++
							body = append(body, tc.object(n)...)
						}
						if _, err := f.Write(message(typeMultipartReply, m.xid(), body...)); err != nil {
							return
						}
					}
				}
			})
			c := dialFake(t, target, Options{})
			peak := heapPeak()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.ReadBack(ctx, tc.filter)
			if !errors.Is(err, ErrTooMuch) {
				t.Error(err)
			}
			if grown := peak(); grown > 200<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
		})
	}
}
