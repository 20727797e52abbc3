//go:build linux

package ofctrl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/wait"
)

func txError(t *testing.T, err error) *TxError {
	t.Helper()
	var tx *TxError
	if !errors.As(err, &tx) {
		t.Fatalf("error %T %v, want a *TxError", err, err)
	}
	return tx
}

// TestRefusedAmongThousands has the switch refuse a few flows among thousands: exactly they are reported, in
// order, with the switch's reason, and nothing is installed.
func TestRefusedAmongThousands(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	good := bigState(2000)
	for _, bad := range []struct {
		name   string
		change func(*flow.Flow)
		reason string
		first  bool // reported while the bundle is added; else when it is committed
	}{
		{"ct without ip", func(f *flow.Flow) { f.Match, f.Actions = flow.Match{}, []flow.Action{dnat("10.0.0.1", 80)} }, "OFPBAC_MATCH_INCONSISTENT", true},
		{"set_field without prerequisite", func(f *flow.Flow) { f.Match = flow.Match{}; f.Actions = []flow.Action{flow.DecTTL{}} }, "OFPBAC_MATCH_INCONSISTENT", true},
		{"port without protocol", func(f *flow.Flow) { f.Match.IPProto = 0 }, "OFPBMC_BAD_PREREQ", true},
		{"family mismatch", func(f *flow.Flow) { f.Match.EthType = flow.EthIPv6 }, "OFPBMC_BAD_PREREQ", true},
		{"missing group", func(f *flow.Flow) { f.Actions = []flow.Action{flow.ToGroup{ID: 99}} }, "OFPBAC_BAD_OUT_GROUP", false},
		{"missing meter", func(f *flow.Flow) { f.Actions = []flow.Action{flow.ToMeter{ID: 99}, flow.Output{Port: 1}} }, "OFPMMFC_INVALID_METER", false},
	} {
		t.Run(bad.name, func(t *testing.T) {
			d := flow.Diff(flow.NewState(), good)
			var want []any
			for _, i := range []int{0, 1234, len(d.SetFlows) - 1} {
				f := *d.SetFlows[i]
				bad.change(&f)
				f.Priority += uint16(i + 1) // keys stay different
				d.SetFlows[i] = &f
				want = append(want, &f)
				if !bad.first {
					break // a commit fails with the first
				}
			}
			_, err := c.Commit(t.Context(), d)
			tx := txError(t, err)
			if tx.Installed() || len(tx.Rejected) != len(want) || tx.More != 0 {
				t.Fatalf("%+v", tx)
			}
			for i, r := range tx.Rejected {
				if r.Object != want[i] || r.Op != OpSet || !strings.Contains(r.Reason(), strings.TrimPrefix(bad.reason, "OFP")) {
					t.Errorf("rejection %d: %v, want %v: %s", i, r, want[i], bad.reason)
				}
			}
			if stage := map[bool]Stage{true: StageBundle, false: StageCommit}[bad.first]; tx.Stage != stage {
				t.Errorf("stage %q, want %q", tx.Stage, stage)
			}
			if !strings.Contains(err.Error(), want[0].(*flow.Flow).String()) {
				t.Errorf("the flow is not named: %v", err)
			}
			wantSame(t, mustRead(t, c).State, flow.NewState())
		})
	}
	// the connection is as good as before
	mustCommit(t, c, flow.Diff(flow.NewState(), good))
	wantSame(t, mustRead(t, c).State, good)
}

// TestRefusedGroup has the switch refuse groups in several ways.
func TestRefusedGroup(t *testing.T) {
	t.Parallel()
	c := newBridge(t).dial(Options{})
	same := &flow.Group{ID: groupLo, Buckets: []flow.Bucket{{ID: 1, Weight: 1}, {ID: 1, Weight: 2}}}
	port := &flow.Group{ID: groupLo, Buckets: []flow.Bucket{{ID: 1, Weight: 1, Actions: []flow.Action{flow.Output{Port: 0xffffff42}}}}}
	for _, g := range []*flow.Group{same, port} {
		tx := txError(t, second(c.Commit(t.Context(), &flow.Delta{SetGroups: []*flow.Group{g}})))
		if len(tx.Rejected) != 1 || tx.Rejected[0].Object != g || !strings.HasPrefix(tx.Rejected[0].Reason(), "OFP") {
			t.Errorf("%v: %+v", g, tx)
		}
	}
	wantSame(t, mustRead(t, c).State, flow.NewState())
}

func second[A, B any](_ A, b B) B { return b }

// TestNotEncodable has objects that must not be sent at all.
func TestNotEncodable(t *testing.T) {
	t.Parallel()
	c := newBridge(t).dial(Options{})
	wide := &flow.Group{ID: groupLo}
	for i := range 744 {
		wide.Buckets = append(wide.Buckets, flow.Bucket{ID: uint32(i), Weight: 1, Actions: []flow.Action{dnat("10.0.0.1", 80)}})
	}
	many := slices.Repeat([]flow.Action{flow.Resubmit{Table: 1}}, 5000)
	long := fl(1, 1, flow.Match{EthType: flow.EthIPv4}, many...)
	badFlow := func(change func(*flow.Flow)) *flow.Flow {
		f := fl(1, 1, tcpTo("10.0.0.1", 80), flow.Output{Port: 1})
		change(f)
		return f
	}
	for name, tc := range map[string]struct {
		d    flow.Delta
		is   error
		text string
	}{
		"wide group":        {flow.Delta{SetGroups: []*flow.Group{wide}}, ErrGroupTooWide, "744 buckets"},
		"long flow":         {flow.Delta{SetFlows: []*flow.Flow{long}}, ErrTooLong, ""},
		"long bucket":       {flow.Delta{SetGroups: []*flow.Group{{ID: groupLo, Buckets: []flow.Bucket{{Actions: many}}}}}, ErrGroupTooWide, ""},
		"reserved group":    {flow.Delta{SetGroups: []*flow.Group{{ID: groupAll}}}, nil, "reserved"},
		"delete all groups": {flow.Delta{DelGroups: []uint32{groupAll}}, nil, "reserved"},
		"delete in all":     {flow.Delta{DelFlows: []*flow.Flow{fl(255, 1, flow.Match{})}}, nil, "all tables"},
		"delete cookie 0":   {flow.Delta{DelLearned: []flow.Learned{{Table: 1}}}, nil, "cookie"},
		"unknown method":    {flow.Delta{SetGroups: []*flow.Group{{ID: groupLo, Method: flow.UnknownMethod}}}, nil, "method"},
		"reserved bucket":   {flow.Delta{SetGroups: []*flow.Group{{ID: groupLo, Buckets: []flow.Bucket{{ID: bucketAll}}}}}, nil, "reserved"},
		"unknown match":     {flow.Delta{SetFlows: []*flow.Flow{badFlow(func(f *flow.Flow) { f.Match.Unknown = "oxm=00" })}}, nil, "does not know"},
		"unknown action":    {flow.Delta{SetFlows: []*flow.Flow{badFlow(func(f *flow.Flow) { f.Actions = []flow.Action{flow.UnknownAction{Text: "x"}} })}}, nil, "cannot be sent"},
		"prefix of nothing": {flow.Delta{SetFlows: []*flow.Flow{badFlow(func(f *flow.Flow) { f.Match.Dst = netip.MustParsePrefix("0.0.0.0/0") })}}, nil, "prefix"},
		"meter 0":           {flow.Delta{SetMeters: []flow.Meter{{Rate: 1, Burst: 1}}}, nil, "reserved"},
		"meter of nothing":  {flow.Delta{SetMeters: []flow.Meter{{ID: 1}}}, nil, "rate"},
	} {
		_, err := c.Commit(t.Context(), &tc.d)
		tx := txError(t, err)
		if len(tx.Rejected) != 1 || tc.is != nil && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %+v", name, tx)
		}
		if n := len(err.Error()); n > 1000 {
			t.Errorf("%s: error of %d bytes", name, n)
		}
	}
	wantSame(t, mustRead(t, c).State, flow.NewState())
}

// TestForeignUntouched makes every kind of change beside flows, groups and meters of somebody else.
func TestForeignUntouched(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	b.ofctl("add-group", "group_id=5,type=all,bucket=output:1,bucket=output:2")
	b.ofctl("add-group", "group_id=6,type=select,selection_method=dp_hash,bucket=weight:5,output:1")
	b.ofctl("add-meter", "meter=9,kbps,band=type=drop,rate=7")
	b.addFlows(
		"cookie=0x77,table=1,priority=300,tcp,nw_dst=40.0.0.0,tp_dst=80,actions=drop",
		"cookie=0x77,table=1,priority=299,udp,nw_src=1.2.3.0/255.255.0.255,vlan_tci=0x1123,actions=push_vlan:0x8100,set_field:4097->vlan_vid,group:5",
		"cookie=0,table=0,priority=0,actions=NORMAL",
		"cookie=0x1,table=2,priority=5,idle_timeout=500,importance=3,ip,actions=ct(commit,zone=NXM_NX_REG1[0..15],exec(set_field:1->ct_mark)),ct_clear,write_metadata:1,goto_table:5",
		"cookie=0x1,table=2,priority=6,tcp,tcp_flags=+syn,actions=learn(table=3,eth_type=0x800,NXM_OF_IP_SRC[]=NXM_OF_IP_DST[],output:NXM_OF_IN_PORT[]),clone(output:2),note:11.22,exit",
		"cookie=0x2,table=99,actions=conjunction(1,1/2)",
	)
	dump := func() string {
		return b.ofctl("dump-flows", "--no-stats", "cookie=0/"+fmt.Sprintf("%#x", uint64(ownMask))) + b.ofctl("dump-groups", "5") + b.ofctl("dump-groups", "6") + b.ofctl("dump-meter", "meter=9")
	}
	strip := func(s string) string { // transaction ids differ
		var out []string
		for _, l := range strings.Split(s, "\n") {
			if !strings.Contains(l, "reply") {
				out = append(out, l)
			}
		}
		return strings.Join(out, "\n")
	}
	before := strip(dump())

	want := bigState(50)
	for k := range want.Flows {
		if k.Match.Dst.Addr() == netip.MustParseAddr("40.0.0.0") {
			delete(want.Flows, k)
		}
	}
	snap := mustRead(t, c)
	if len(snap.Foreign) != 5 || len(snap.State.Flows)+len(snap.State.Groups)+len(snap.State.Meters) != 0 {
		t.Fatalf("foreign %v, own %v %v", snap.Foreign, snap.State.Flows, snap.State.Groups)
	}
	for _, f := range snap.Foreign {
		if f.Match.Unknown != "" {
			continue // a key that nothing of ours can have
		}
		_, err := c.Commit(t.Context(), &flow.Delta{SetFlows: []*flow.Flow{{Key: f.Key, Cookie: ownCookie}}})
		if !errors.Is(err, ErrForeignFlow) || !strings.Contains(err.Error(), fmt.Sprintf("cookie=%#x", f.Cookie)) {
			t.Errorf("set in the place of %v: %v", f, err)
		}
	}
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	wantSame(t, mustRead(t, c).State, want)
	// deletes that name keys of foreign flows, under our cookie, and tables that foreign flows are in
	d := flow.Diff(want, flow.NewState())
	for _, f := range snap.Foreign {
		d.DelFlows = append(d.DelFlows, &flow.Flow{Key: f.Key, Cookie: ownCookie | 1})
	}
	d.DelLearned = []flow.Learned{{Table: 1, Cookie: learnCookie}, {Table: 2, Cookie: learnCookie}}
	d.DelMeters = []uint32{1}
	mustCommit(t, c, d)
	wantSame(t, mustRead(t, c).State, flow.NewState())
	if after := strip(dump()); after != before {
		t.Errorf("foreign objects changed:\n%s\nbefore:\n%s", after, before)
	}
	if !strings.Contains(before, "group_id=5") || !strings.Contains(before, "table=99") || !strings.Contains(before, "rate=7") {
		t.Errorf("dump lacks something: %s", before)
	}
}

// TestOwnUnknown has flows under our cookie that package flow cannot express: they differ from all that can be
// wanted, and they can be deleted.
func TestOwnUnknown(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	var flows []string
	for i, m := range []string{
		"tcp,tp_dst=0,actions=drop", "in_port=0,actions=drop", "dl_vlan=5,actions=drop", "ip,nw_proto=0,actions=drop",
		"ip,nw_src=1.0.0.1/255.0.0.255,actions=drop", "metadata=1,actions=drop", "reg4=5,reg9=1,actions=drop",
		"icmp6,icmp_type=0,actions=drop", "dl_dst=00:00:00:00:00:00,actions=drop", "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00,actions=drop",
		"udp,nw_ttl=5,actions=drop", "hard_timeout=500,ip,actions=drop", "ip,actions=ct(commit,force,zone=1)",
	} {
		flows = append(flows, fmt.Sprintf("cookie=%#x,table=1,priority=%d,%s", uint64(ownCookie|5), 100+i, m))
	}
	b.addFlows(flows...)
	have := mustRead(t, c).State
	if len(have.Flows) != 13 {
		t.Fatalf("%d flows", len(have.Flows))
	}
	for _, f := range have.Flows {
		known := f.Match.Unknown == ""
		for _, a := range f.Actions {
			_, unknown := a.(flow.UnknownAction)
			known = known && !unknown
		}
		if known {
			t.Errorf("taken for one of ours: %v", f)
		}
	}
	mustCommit(t, c, flow.Diff(have, flow.NewState()))
	wantSame(t, mustRead(t, c).State, flow.NewState())
}

// TestLearned lets a learn action make a flow by way of a packet, and finds, counts and deletes it.
func TestLearned(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	learn := flow.Learn{
		Table: 10, IdleTimeout: 100, Priority: 100, Cookie: learnCookie | 4, EthType: flow.EthIPv4,
		Match: [2]flow.Subfield{flow.Whole(flow.IPSrc), {Field: flow.Reg1, Ofs: 8, N: 24}}, Load: flow.Whole(flow.Reg2), Limit: 1,
	}
	want := state(t, fl(1, 5, flow.Match{EthType: flow.EthIPv4}, learn), fl(0, 5, flow.Match{},
		flow.SetField{Field: flow.Reg1, Value: 0x401, Mask: 0xffffffff}, flow.SetField{Field: flow.Reg2, Value: 7, Mask: 0xffffffff}, flow.Resubmit{Table: 1}))
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	if err := c.PacketOut(t.Context(), flow.PortLocal, udpFrame("10.0.0.9", "10.0.0.1", 5, 6, "x"), flow.Output{Port: portTable}); err != nil {
		t.Fatal(err)
	}
	pins := func() map[flow.Key]*flow.Flow {
		t.Helper()
		s, err := c.ReadBack(t.Context(), Filter{Cookie: learnCookie, CookieMask: ownMask})
		must(t, err)
		return s.State.Flows
	}
	wait.For(t, "a learned flow", func() bool { return len(pins()) > 0 })
	wantKey := key(10, 100, flow.Match{EthType: flow.EthIPv4, Src: netip.MustParsePrefix("10.0.0.9/32"), Reg: [4]flow.Bits{1: {Value: 0x400, Mask: 0xffffff00}}})
	l := pins()[wantKey]
	if l == nil || l.Cookie != learnCookie|4 || len(l.Actions) != 2 || l.Actions[0] != (flow.SetField{Field: flow.Reg2, Value: 7, Mask: 0xffffffff}) {
		t.Errorf("learned %v", pins())
	}
	counts := func(want ...uint64) {
		t.Helper()
		got, err := c.CookieCounts(t.Context(), 10, []uint64{learnCookie | 4, learnCookie | 5})
		sizes, sizesErr := c.TableSizes(t.Context())
		if err != nil || sizesErr != nil || !slices.Equal(got, want) || uint64(sizes[10]) != want[0]+want[1] || sizes[1] != 1 {
			t.Errorf("flows by cookie %v, want %v (%v); tables %v (%v)", got, want, err, sizes, sizesErr)
		}
	}
	counts(1, 0)
	if snap := mustRead(t, c); len(snap.Foreign) != 1 { // those of Filter.Tables
		t.Errorf("foreign: %v", snap.Foreign)
	}
	wantSame(t, mustRead(t, c).State, want)
	mustCommit(t, c, &flow.Delta{DelLearned: []flow.Learned{{Table: 10, Cookie: learnCookie | 5}, {Table: 11, Cookie: learnCookie | 4}}})
	counts(1, 0)
	mustCommit(t, c, &flow.Delta{DelLearned: []flow.Learned{{Table: 10, Cookie: learnCookie | 4}}})
	counts(0, 0)
}

// TestClear deletes all flows under a cookie and sets others in the same transaction.
func TestClear(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	flows := []string{"cookie=0x77,table=1,priority=9,ip,actions=drop"}
	for table := range 100 {
		flows = append(flows, fmt.Sprintf("cookie=%#x,table=%d,priority=9,actions=drop", uint64(ownCookie|9), table))
	}
	b.addFlows(flows...)
	want := state(t, fl(1, 9, flow.Match{}), fl(2, 5, flow.Match{EthType: flow.EthIPv4}, flow.DecTTL{}))
	d := flow.Diff(flow.NewState(), want)
	d.Clear = []flow.Cookies{{Cookie: ownCookie, Mask: ownMask}}
	mustCommit(t, c, d)
	snap := mustRead(t, c)
	wantSame(t, snap.State, want)
	if len(snap.Foreign) != 1 {
		t.Errorf("foreign: %v", snap.Foreign)
	}
	for _, bad := range []flow.Cookies{{}, {Mask: ownMask}, {Cookie: ownCookie | 1, Mask: ownMask}} {
		if _, err := c.Commit(t.Context(), &flow.Delta{Clear: []flow.Cookies{bad}}); err == nil {
			t.Errorf("cleared %v", bad)
		}
	}
}

// TestForeignFlood has a switch that holds more flows of others in one table than a read-back takes: that
// table is not read, and the rest is.
func TestForeignFlood(t *testing.T) {
	t.Parallel()
	sizes := [256]uint32{1: MaxForeign + 2, 2: 2} // one flow of each table is ours
	foreign := flow.Key{Table: 2, Priority: 9}
	var reads [256]int // of a table with the flows of others
	c := dialFake(t, serveFake(t, onEach(func(f *ofctrltest.Session, m frame) {
		switch {
		case m.typ() == typeMultipartRequest && u16(m.body()) == mpTable:
			body := []byte{0, mpTable, 0, 0, 0, 0, 0, 0}
			for table, n := range sizes {
				entry := make([]byte, tableStatsLen)
				entry[0] = byte(table)
				binary.BigEndian.PutUint32(entry[4:], n)
				body = append(body, entry...)
			}
			f.Send(byte(typeMultipartReply), m.xid(), body...)
			return
		case m.typ() == typeMultipartRequest && u16(m.body()) == mpFlowDesc && u64(m.body()[mpHeaderLen+24:]) == 0:
			reads[m.body()[mpHeaderLen]]++
		}
		f.Answer(ofctrltest.Message(m))
	})), Options{})
	want := state(t, fl(1, 9, flow.Match{}), fl(2, 5, flow.Match{EthType: flow.EthIPv4}, flow.DecTTL{}))
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{{Key: foreign, Cookie: 0x77}}})

	snap := mustRead(t, c)
	wantSame(t, snap.State, want)
	if len(snap.Foreign) != 1 || len(snap.Skipped) != 1 || snap.Skipped[1] != MaxForeign+1 {
		t.Errorf("foreign %v, skipped %v", snap.Foreign, snap.Skipped)
	}
	if reads != [256]int{2: 1} {
		t.Errorf("tables are read so often: %v", reads)
	}
}

// TestCanceled ends the context of a Commit when the switch reads a message of the bundle: before the commit
// message nothing is installed, from then on everything, and the connection goes on. Only a commit without an
// answer ends it, outcomeWait later.
func TestCanceled(t *testing.T) {
	t.Parallel()
	want := bigState(20)
	d := flow.Diff(flow.NewState(), want)
	last := len(d.SetGroups) + len(d.SetFlows) + 3 // the commit message
	for _, tc := range []struct {
		at        int // a message of the bundle, from 1 on
		answers   bool
		installed bool
	}{
		{1, true, false}, {2, true, false}, {last / 2, true, false}, {last - 1, true, false},
		{last, true, true}, {last, false, false},
	} {
		t.Run(fmt.Sprintf("message %d of %d, answers %t", tc.at, last, tc.answers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				n := 0
				c := mustPipe(t, onEach(func(f *ofctrltest.Session, m frame) {
					if m.typ() == typeBundleControl || m.typ() == typeBundleAdd {
						n++
					}
					if n == tc.at {
						cancel()
						synctest.Wait() // Commit has seen it
					}
					if n != tc.at || tc.answers {
						f.Answer(ofctrltest.Message(m))
					}
				}), Options{})
				begun := time.Now()
				_, err := c.Commit(ctx, d)
				if !tc.answers {
					if !errors.Is(err, ErrOutcomeUnknown) || time.Since(begun) != outcomeWait || c.Err() == nil {
						t.Errorf("after %v: %v; the connection: %v", time.Since(begun), err, c.Err())
					}
					return
				}
				held := flow.NewState()
				if tc.installed {
					held = want
				}
				if (err == nil) != tc.installed || err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
				wantSame(t, mustRead(t, c).State, held)
				mustCommit(t, c, d)
				wantSame(t, mustRead(t, c).State, want)
			})
		})
	}
}

// TestCounters reads numbers of flows and groups.
func TestCounters(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	want := bigState(300)
	want.Flows[key(0, 7, flow.Match{})] = &flow.Flow{Key: key(0, 7, flow.Match{}), Cookie: ownCookie | 0xabc}
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	b.ofctl("add-flow", "cookie=5,table=7,actions=drop")
	frame := udpFrame("10.0.0.9", "10.0.0.1", 5, 6, "x")
	for range 3 {
		must(t, c.PacketOut(t.Context(), flow.PortLocal, frame, flow.Output{Port: portTable}))
	}
	n, err := c.FlowCount(t.Context(), ownCookie, ownMask)
	if err != nil || n.Flows != 601 {
		t.Errorf("%+v, %v", n, err)
	}
	all, err := c.FlowCount(t.Context(), 0, 0)
	if err != nil || all.Flows != 602 {
		t.Errorf("%+v, %v", all, err)
	}
	everywhere, err := c.TableCounters(t.Context(), allTables, ownCookie, ownMask)
	if err != nil || len(everywhere) != 601 {
		t.Errorf("%d flows, %v", len(everywhere), err)
	}
	first, err := c.TableCounters(t.Context(), 0, ownCookie|0xabc, ^uint64(0))
	if err != nil || len(first) != 1 || first[0] != (FlowCounter{Cookie: ownCookie | 0xabc, Priority: 7, Packets: 3, Size: 3 * uint64(len(frame))}) {
		t.Errorf("%+v, %v", first, err)
	}
	if others, err := c.TableCounters(t.Context(), 7, ownCookie, ownMask); err != nil || len(others) != 0 {
		t.Errorf("somebody else's flow is counted: %+v, %v", others, err)
	}
	groups, err := c.GroupCounters(t.Context(), groupLo+10, groupLo+19)
	if err != nil || len(groups) != 10 || len(groups[groupLo+10].Buckets) != 10 {
		t.Errorf("%v, %v", groups, err)
	}
}
