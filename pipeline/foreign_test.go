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
