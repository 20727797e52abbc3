//go:build linux

package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/wait"
)

// own is a flow of ours to port n, and others the same flow as ovs-ofctl has it.
func own(n int) *flow.Flow {
	f := fl(1, 300, tcpTo("40.0.0.1", uint16(n)), flow.Output{Port: 1})
	f.Cookie = ownCookie
	return f
}

func others(n int) string {
	return fmt.Sprintf("table=1,priority=300,tcp,nw_dst=40.0.0.1,tp_dst=%d", n)
}

// TestForeignFlowsAreNotReplaced has another owner add flows where ours are to be, at every moment: none of them is replaced or
// deleted, and once they are gone ours can come.
func TestForeignFlowsAreNotReplaced(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	add := func(n int, cookie string) { b.ofctl("add-flow", "cookie="+cookie+","+others(n)+",actions=drop") }
	del := func(n int) { b.ofctl("del-flows", "--strict", others(n)) }
	set := func(ns ...int) error {
		d := &flow.Delta{}
		for _, n := range ns {
			d.SetFlows = append(d.SetFlows, own(n))
		}
		_, err := c.Commit(t.Context(), d)
		return err
	}
	refused := func(when string, cookie string, ns ...int) {
		t.Helper()
		err := set(ns...)
		if !errors.Is(err, ErrForeignFlow) || !strings.Contains(err.Error(), cookie) {
			t.Errorf("%s: %v", when, err)
		}
		if out := b.ofctl("dump-flows", "--no-stats", strings.Replace(others(ns[0]), "priority=300,", "", 1)); cookie != "0x0" && !strings.Contains(out, "cookie="+cookie) || !strings.Contains(out, "actions=drop") {
			t.Errorf("%s: the flow is not as it was: %s", when, out)
		}
	}
	allowed := func(when string, ns ...int) {
		t.Helper()
		if err := set(ns...); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}

	add(1, "0x77")
	must(t, c.Watch(t.Context(), ownFilter, ownFilter.Tables))
	mustRead(t, c)
	refused("there before the first read", "0x77", 1)
	add(2, "0")
	refused("added after the read", "0x0", 2, 3)
	del(2)
	add(3, "0x6e6c000000000001")
	refused("moved: one is gone, one has come", "0x6e6c000000000001", 3)
	allowed("gone", 2)
	del(3)
	add(2, "0x78")
	refused("over a flow of ours", "0x78", 2)
	b.ofctl("mod-flows", "cookie=0x78/-1,table=1,actions=drop")
	refused("over a flow of ours, then changed", "0x78", 2)
	_, err := c.Commit(t.Context(), &flow.Delta{DelFlows: []*flow.Flow{own(2)}})
	must(t, err)
	refused("after ours was deleted", "0x78", 2)
	mustRead(t, c)
	refused("after another read", "0x78", 2)
	b.ofctl("add-flow", fmt.Sprintf("cookie=%#x,%s,actions=drop", uint64(ownCookie), others(2)))
	allowed("our own cookie, by another connection", 2)
	allowed("what this connection itself has set", 2)
	del(1)
	allowed("all gone", 1, 2, 3, 4)
	b.ofctl("del-flows", "table=1")
	allowed("all flows were deleted", 1, 2, 3, 4)
	if got, _ := remembered(c); got != 0 {
		t.Errorf("%d flows are remembered; there is none", got)
	}

	// What comes while the switch is told to commit is replaced. That is not kept from anybody.
	c.foreign.mu.Lock()
	c.foreign.set(&flow.Flow{Key: own(7).Key, Cookie: 0x79}, nil)
	c.foreign.mu.Unlock()
	if n := c.foreign.forget([]*flow.Flow{own(6), own(7)}); n != 1 || len(c.foreign.known) != 0 {
		t.Errorf("%d replaced, %d remembered", n, len(c.foreign.known))
	}
}

// TestForeignFlowsWithoutReports has a switch that cannot report: what the last read found counts.
func TestForeignFlowsWithoutReports(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	var refusal *SwitchError
	if err := c.Watch(t.Context(), ownFilter, []uint8{255, 1, 255}); err != nil && !errors.As(err, &refusal) {
		t.Fatal(err)
	} else if err == nil {
		c.foreign.mu.Lock()
		c.foreign.watch = nil
		c.foreign.mu.Unlock()
	}
	b.ofctl("add-flow", "cookie=0x77,"+others(1)+",actions=drop")
	mustRead(t, c)
	refused := func(after string) {
		t.Helper()
		if _, err := c.Commit(t.Context(), &flow.Delta{SetFlows: []*flow.Flow{own(1)}}); !errors.Is(err, ErrForeignFlow) {
			t.Errorf("after %s: %v", after, err)
		}
	}
	refused("a read")
	ours := ownFilter
	ours.Tables = nil
	_, err := c.ReadBack(t.Context(), ours)
	must(t, err)
	refused("a read of nkp's own flows alone")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.ReadBack(ctx, ownFilter); err == nil {
		t.Fatal("the read was not cut")
	}
	refused("a read that was cut")
	b.ofctl("del-flows", "--strict", others(1))
	mustRead(t, c)
	mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{own(1)}})
}

// remembered returns how many foreign flows a connection knows, and whether there were too many.
func remembered(c *Conn) (n int, left bool) {
	c.foreign.mu.Lock()
	defer c.foreign.mu.Unlock()
	return len(c.foreign.known), c.foreign.overflowed
}

// TestManyForeignFlows has another owner add more flows at once than the switch queues reports for (128 KiB,
// Open vSwitch's connmgr.c), and more than are remembered.
func TestManyForeignFlows(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	must(t, c.Watch(t.Context(), ownFilter, ownFilter.Tables))
	mustRead(t, c)
	const n = 5000 // reports of some 60 bytes
	var flows []string
	for i := range n {
		flows = append(flows, "cookie=0x77,"+others(i+1)+",actions=drop")
	}
	b.addFlows(flows...)
	for _, k := range []int{1, n / 2, n} {
		if _, err := c.Commit(t.Context(), &flow.Delta{SetFlows: []*flow.Flow{own(k)}}); !errors.Is(err, ErrForeignFlow) {
			t.Errorf("flow %d: %v", k, err)
		}
	}
	if got, _ := remembered(c); got != n {
		t.Errorf("%d of %d flows are known", got, n)
	}
	b.ofctl("del-flows", "table=1")
	mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{own(1), own(n)}})

	few := b.dial(Options{})
	few.foreign.mu.Lock()
	few.foreign.max = 100
	few.foreign.mu.Unlock()
	must(t, few.Watch(t.Context(), ownFilter, ownFilter.Tables))
	b.addFlows(flows...)
	mustRead(t, few)
	if got, left := remembered(few); got != 100 || !left {
		t.Errorf("%d flows are remembered; at most 100 should be", got)
	}
	b.ofctl("del-flows", "table=1")
	mustRead(t, few)
	if got, left := remembered(few); got != 0 || left {
		t.Error("what was left out once is not looked at again")
	}
}

// TestPausedReports has a commit wait for a switch that has paused its reports, and not for ever.
func TestPausedReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := mustPipe(t, func(f *ofctrltest.Session) {
			for m, err := f.Read(); err == nil; m, err = f.Read() {
				f.Answer(m)
			}
		}, Options{})
		event := func(typ uint16) {
			c.foreign.mu.Lock()
			defer c.foreign.mu.Unlock()
			must(t, c.foreign.event(typ, make([]byte, 8)))
		}
		event(flowPaused)
		event(flowPaused)
		time.AfterFunc(pauseWait/2, func() { event(flowResumed); event(flowResumed) })
		begun := time.Now()
		mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{own(1)}})
		if took := time.Since(begun); took != pauseWait/2 {
			t.Errorf("the commit took %v, the pause %v", took, pauseWait/2)
		}
		event(flowPaused)
		begun = time.Now()
		if _, err := c.Commit(t.Context(), &flow.Delta{SetFlows: []*flow.Flow{own(2)}}); err == nil || time.Since(begun) != pauseWait {
			t.Errorf("a commit while reports are paused: %v after %v", err, time.Since(begun))
		}
	})
}

// TestForeign counts foreign flows by table, and keeps those in full that it is asked for: as they were read, and as the switch
// reports them later.
func TestForeign(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	b.ofctl("add-flow", "cookie=0x70,table=1,priority=9,ip,actions=drop")
	b.ofctl("add-flow", "cookie=0x71,table=1,priority=8,metadata=1,actions=NORMAL") // package flow has no such field
	f := ownFilter
	f.Keep = func(f *flow.Flow) bool { return f.Priority >= 8 }
	c := b.dial(Options{})
	must(t, c.Watch(t.Context(), f, f.Tables))
	read := func() {
		t.Helper()
		_, err := c.ReadBack(t.Context(), f)
		must(t, err)
	}
	says := func(when string, number int, want ...string) {
		t.Helper()
		wait.NoError(t, when, func() error {
			var got []string
			known := c.Foreign()
			for _, f := range known.Kept {
				got = append(got, f.String())
			}
			if known.Number[1] != number || !slices.Equal(got, want) {
				return fmt.Errorf("%d flows, %q; want %d, %q", known.Number[1], got, number, want)
			}
			return nil
		})
	}
	const nine, eight = "cookie=0x70,table=1,priority=9,ip,actions=drop", "cookie=0x71,table=1,priority=8,oxm=800004080000000000000001,actions=NORMAL"
	read()
	says("read", 2, nine, eight)
	b.ofctl("add-flow", "cookie=0x72,table=1,priority=10,tcp,tp_dst=80,actions=output:7,resubmit(,2)")
	b.ofctl("add-flow", "cookie=0x73,table=1,priority=7,ip,actions=drop")
	says("reported", 4, "cookie=0x72,table=1,priority=10,tcp,tp_dst=80,actions=output:7,resubmit(,2)", nine, eight)
	b.ofctl("mod-flows", "--strict", "table=1,priority=10,tcp,tp_dst=80,actions=NORMAL")
	says("changed", 4, "cookie=0x72,table=1,priority=10,tcp,tp_dst=80,actions=NORMAL", nine, eight)
	b.ofctl("del-flows", "--strict", "table=1,priority=10,tcp,tp_dst=80")
	says("deleted", 3, nine, eight)
	mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{own(1)}})
	read()
	says("read again", 3, nine, eight)

	var flows []string
	for i := range MaxKept + 5 {
		flows = append(flows, "cookie=0x77,"+others(i+1)+",actions=drop")
	}
	b.addFlows(flows...)
	read()
	if known := c.Foreign(); len(known.Kept) != MaxKept || known.Number[1] != 3+MaxKept+5 { // one has replaced ours
		t.Errorf("%d kept of %d", len(known.Kept), known.Number[1])
	}
	b.ofctl("del-flows", "table=1")
	says("all deleted", 0)
}

// TestWatchRefusedWithoutID has a switch that refuses monitors as Open vSwitch 2.17 does: by errors with transaction id 0.
func TestWatchRefusedWithoutID(t *testing.T) {
	t.Parallel()
	c := dialFake(t, serveFake(t, onEach(func(f *ofctrltest.Session, m frame) {
		if m.typ() == typeMultipartRequest && u16(m.body()) == mpFlowMonitor {
			f.Write(message(typeError, 0, 0xb0, 0xc2, 0, 0))
		}
	})), Options{})
	var refusal *SwitchError
	if err := c.Watch(t.Context(), ownFilter, []uint8{1, 2}); !errors.As(err, &refusal) {
		t.Errorf("%v, want a refusal", err)
	}
}

// TestRefusedPacketIsNotWatch has a switch that refuses a packet-out while it is asked to report changes.
func TestRefusedPacketIsNotWatch(t *testing.T) {
	t.Parallel()
	c := dialFake(t, serveFake(t, func(f *ofctrltest.Session) {
		var packet frame
		for {
			m, err := read(f)
			if err != nil {
				return
			}
			switch {
			case m.typ() == typePacketOut:
				packet = slices.Clone(m)
			case m.typ() == typeMultipartRequest && u16(m.body()) == mpFlowMonitor:
				f.Write(message(typeError, packet.xid(), 0, 2, 0, 4))
				f.Write(message(typeMultipartReply, m.xid(), mpFlowMonitor>>8, mpFlowMonitor&0xff, 0, 0, 0, 0, 0, 0))
			}
		}
	}), Options{})
	must(t, c.PacketOut(t.Context(), flow.PortLocal, udpFrame("10.0.0.9", "10.0.0.1", 5, 6, "x"), flow.Output{Port: portTable}))
	must(t, c.Watch(t.Context(), ownFilter, []uint8{1, 2}))
}

// What the flows of others in a table do is known after each change, and a change of that is reported once.
func TestOthers(t *testing.T) {
	flips := 0
	o := &foreignFlows{seed: maphash.MakeSeed(), max: 3, known: map[uint64]foreignFlow{}, onOthers: func() { flips++ }}
	normal := func(priority uint16) *flow.Flow {
		return fl(0, priority, flow.Match{}, flow.Output{Port: flow.PortNormal})
	}
	drop := fl(0, 5, flow.Match{})
	for i, step := range []struct {
		does  func()
		want  flow.Others
		flips int
	}{
		{func() { o.set(normal(0), nil) }, flow.OthersForward, 1},
		{func() { o.set(normal(7), nil) }, flow.OthersForward, 1},
		{func() { o.set(drop, nil) }, flow.OthersDecide, 2},
		{func() { o.set(fl(0, 5, flow.Match{}, flow.Output{Port: flow.PortNormal}), nil) }, flow.OthersForward, 3}, // in its place
		{func() { o.set(drop, nil) }, flow.OthersDecide, 4},
		{func() { o.remove(&normal(0).Key); o.remove(&normal(7).Key) }, flow.OthersDecide, 4},
		{func() { o.remove(&drop.Key) }, flow.OthersNone, 5},
		{func() { o.set(fl(1, 5, flow.Match{}), nil) }, flow.OthersNone, 6}, // another table
	} {
		if step.does(); o.others(0) != step.want || flips != step.flips {
			t.Errorf("step %d: %d after %d reports; want %d after %d", i, o.others(0), flips, step.want, step.flips)
		}
	}
}
