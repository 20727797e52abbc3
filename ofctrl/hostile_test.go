//go:build linux

package ofctrl

import (
	"bufio"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A flood of packet-ins does not hold up a transaction, and only Options.PacketInQueue of them are kept for a
// handler that does not return: the others are dropped and counted.
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
	var sent atomic.Uint64
	target := serveFake(t, func(f *ofctrltest.Session) {
		w := bufio.NewWriterSize(f, 1<<16)
		for {
			m, err := read(f)
			if err != nil {
				return
			}
			for range 20 {
				w.Write(packetIn)
				sent.Add(1)
			}
			if m.typ() == typeBundleControl {
				w.Flush()
				f.Write(ofctrltest.BundleDone(ofctrltest.Message(m)))
			}
		}
	})
	const queue = 10
	handling, done := make(chan struct{}), make(chan struct{})
	defer close(done)
	begin := sync.OnceFunc(func() { close(handling) })
	c := dialFake(t, target, Options{PacketInQueue: queue, EchoInterval: time.Hour, OnPacketIn: func(*PacketIn) {
		begin()
		<-done
	}})
	mustCommit(t, c, flow.Diff(flow.NewState(), bigState(500)))
	wait.Closed(t, "the first packet", handling)
	// The packets came before the reply to the commit. The handler may have taken one before the queue was full.
	if kept := sent.Load() - c.PacketInDrops(); kept != queue && kept != queue+1 {
		t.Errorf("%d of %d packets are not dropped, want %d in the queue", kept, sent.Load(), queue)
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
			serve := onEach(func(f *ofctrltest.Session, m frame) {
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
			})
			synctest.Test(t, func(t *testing.T) {
				if s, err := mustPipe(t, serve, Options{}).ReadBack(t.Context(), ownFilter); err == nil {
					t.Errorf("read back %v", s.State)
				}
				if _, err := mustPipe(t, serve, Options{}).Commit(t.Context(), flow.Diff(flow.NewState(), bigState(10))); err == nil {
					t.Error("committed")
				}
			})
		})
	}
}

// counter is a Visitor that counts what it gets.
type counter int

func (c *counter) Flow(*flow.Flow)        { *c++ }
func (c *counter) ForeignFlow(*flow.Flow) { *c++ }
func (c *counter) Unread(uint8, int)      {}
func (c *counter) Group(*flow.Group)      { *c++ }
func (c *counter) Meter(flow.Meter)       { *c++ }

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
			target := serveFake(t, onEach(func(f *ofctrltest.Session, m frame) {
				if m.typ() != typeMultipartRequest || u16(m.body()) != tc.typ {
					f.Answer(ofctrltest.Message(m))
					return
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
			}))
			c := dialFake(t, target, Options{})
			var taken counter
			if err := c.Read(t.Context(), tc.filter, &taken); !errors.Is(err, ErrTooMuch) {
				t.Error(err)
			}
			if n := int(taken); n > tc.objects || n > tc.answer/len(tc.object(1)) {
				t.Errorf("%d objects are taken, want at most %d, and %d bytes", n, tc.objects, tc.answer)
			}
		})
	}
}
