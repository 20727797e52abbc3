package pipeline

import (
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A foreign flow that leads to its own table, or to an earlier one, may keep the switch at work for ever; one that leads on does not.
func TestMayReturn(t *testing.T) {
	l := DefaultLayout()
	l.TableBase, l.NextTable = 40, 7
	for _, tc := range []struct {
		from uint8
		does flow.Action
		want bool
	}{
		{tableOutput, flow.Resubmit{Table: 40 + tableServices}, true},
		{tableOutput, flow.Resubmit{Table: 40 + tableOutput}, true},
		{tableOutput, flow.CT{Table: 40 + tableOutput}, true},
		{tableOutput, flow.CT{Table: 40 + tableEntry}, true},
		{tableOutput, flow.CT{Table: flow.NoTable}, false},
		{tableOutput, flow.Resubmit{Table: 40 + tableDeliver}, false},
		{tableOutput, flow.Resubmit{Table: 7}, false},
		{tableOutput, flow.Resubmit{Table: 8}, true}, // what is there is not known
		{tableOutput, flow.ToGroup{ID: 1}, true},
		{tableOutput, flow.Output{Port: flow.PortNormal}, false},
		{tableLearn, flow.Resubmit{Table: 40 + tablePins}, true}, // those of session affinity count as one
	} {
		f := &flow.Flow{Key: flow.Key{Table: 40 + tc.from}, Actions: []flow.Action{tc.does}}
		if got := l.MayReturn(f); got != tc.want {
			t.Errorf("%s: %t", f, got)
		}
	}
}

// Packets that nkp has passed on do not come back to its flows.
func TestPassedOnDoesNotReturn(t *testing.T) {
	l := DefaultLayout()
	for _, tc := range []struct {
		name  string
		table uint8
		does  []flow.Action
		want  bool
	}{
		{"the exit", tableOutput, l.exit(), false},
		{"the exit of table 0", tableEntry, l.exit(), false},
		{"to table 0 without the mark", tableOutput, []flow.Action{flow.Resubmit{Table: 0}}, true},
		{"others' own tables", 0, []flow.Action{flow.Resubmit{Table: 50}}, false},
	} {
		if got := l.MayReturn(&flow.Flow{Key: flow.Key{Table: tc.table}, Actions: tc.does}); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

// Flows that may clear the mark of passed packets, and those that such packets cannot match, are told from others.
func TestReturns(t *testing.T) {
	l := DefaultLayout()
	exit := flow.RegField(l.ExitRegister)
	for _, tc := range []struct {
		name string
		does flow.Action
		want bool
	}{
		{"all bits", flow.SetField{Field: exit, Mask: 0xffffffff}, true},
		{"another register", flow.SetField{Field: flow.RegField(11), Mask: 0xffffffff}, false},
		{"other bits", flow.SetField{Field: exit, Mask: passed - 1}, false},
		{"to 1", flow.SetField{Field: exit, Value: passed, Mask: passed}, false},
		{"by a copy", flow.Copy{Src: flow.Whole(flow.Reg1), Dst: flow.Whole(exit)}, true},
		{"by an action that is not known", flow.UnknownAction{Effects: flow.Effects{Clears: 1 << l.ExitRegister}}, true},
	} {
		e := flow.EffectsOf([]flow.Action{tc.does, flow.Resubmit{Table: 50}})
		if got := l.Returns(&e); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}

	for m, want := range map[flow.Match]bool{
		{}: true, {EthType: flow.EthIPv6}: true, {EthType: 0x0806}: false,
		{Clear31: l.ExitRegister}: false, {Clear31: 11}: true,
	} {
		if got := l.PassedOn(&flow.Flow{Key: flow.Key{Match: m}}); got != want {
			t.Errorf("%s: %t", m, got)
		}
	}
}

// No packet whose source MAC nkp wrote, or whose ingress port it cleared, gets to flows of others: a learning
// switch among them would learn what is wrong. Where others decide nothing, Service packets take no exit, and
// nkp forwards by itself only where others have no flow.
func TestWhatOthersSee(t *testing.T) {
	sp := shape{Name: "a", Cluster: 3, Local: 1, External: k8s.Local, Types: all}.ServicePort()
	flows := map[flow.Others]int{}
	for _, others := range []flow.Others{flow.OthersNone, flow.OthersForward, flow.OthersDecide} {
		cfg := testConfig()
		cfg.Others, cfg.LocalDelivery, cfg.VLANPorts = others, true, []uint32{12}
		exits, forwards := 0, 0
		for _, f := range compile(t, cfg, sp).State().Flows {
			flows[others]++
			leaves := slices.Contains(f.Actions, flow.Action(flow.Resubmit{Table: 0}))
			marked := slices.Contains(f.Actions, flow.Action(flow.SetField{Field: flow.RegField(cfg.Layout.ExitRegister), Value: passed, Mask: passed}))
			if f.Table != tableEntry && leaves != marked {
				t.Errorf("%d: comes back: %v", others, f)
			}
			wrote := slices.ContainsFunc(f.Actions, func(a flow.Action) bool {
				set, ok := a.(flow.SetField)
				return ok && set.Field == flow.EthSrc || a == flow.Action(flow.ClearInPort{})
			})
			if marked && wrote {
				t.Errorf("%d: others would learn from %v", others, f)
			}
			if marked && f.Table == tableDeliver {
				exits++
			}
			if f.Table == tableEntry && f.Match.Clear31 == 0 {
				forwards++
			}
		}
		if (others == flow.OthersDecide) != (exits > 0) || (others == flow.OthersNone) != (forwards == 1) {
			t.Errorf("%d: Service packets take %d exits, %d flows forward", others, exits, forwards)
		}
	}
	if flows[flow.OthersForward] != flows[flow.OthersNone]-1 {
		t.Errorf("flows: %v", flows)
	}
}

// A flow that leads to its own table ends if it increases bits of a register that it matches.
func TestCountingFlowsEnd(t *testing.T) {
	l := DefaultLayout()
	for _, tc := range []struct {
		name       string
		match      flow.Bits
		value, set uint64
		want       bool
	}{
		{"larger", flow.Bits{Value: 0x100, Mask: 0x300}, 0x200, 0x300, false},
		{"the same", flow.Bits{Value: 0x100, Mask: 0x300}, 0x100, 0x300, true},
		{"smaller", flow.Bits{Value: 0x200, Mask: 0x300}, 0x100, 0x300, true},
		{"larger, but not all bits are matched", flow.Bits{Value: 0x100, Mask: 0x100}, 0x200, 0x300, true},
	} {
		m := flow.Match{Reg: [flow.NumRegs]flow.Bits{tc.match}}
		f := &flow.Flow{Key: flow.Key{Table: tableServices, Match: m}, Actions: []flow.Action{
			flow.SetField{Field: flow.Reg0, Value: tc.value, Mask: tc.set}, flow.Resubmit{Table: tableServices}}}
		if got := l.MayReturn(f); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}
