package pipeline

import (
	"testing"

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
