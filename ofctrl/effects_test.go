//go:build linux

package ofctrl

import (
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// What actions can do to the way of a packet is known also of those that nkp does not use, as the switch reports them. EachForeign
// leaves out nkp's own flows, and other tables.
func TestEffects(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	const exit = 1 << 10
	b.ofctl("add-group", "group_id=5,type=select,bucket=actions=drop")
	b.ofctl("add-group", "group_id=0,type=all,bucket=actions=drop")
	for _, tc := range []struct {
		actions   string
		conntrack bool
		tables    []uint8
		clears    uint16
		groups    []uint32
	}{
		{"drop", false, nil, 0, nil},
		{"NORMAL", false, nil, 0, nil},
		{"resubmit(,60),resubmit(,200)", false, []uint8{60, 200}, 0, nil},
		{"goto_table:61", false, []uint8{61}, 0, nil},
		{"resubmit(3,62)", false, []uint8{62}, 0, nil},
		{"resubmit(,63,ct)", false, []uint8{63}, 0, nil},
		{"clone(push_vlan:0x8100,resubmit(,64))", false, []uint8{64}, 0, nil},
		{"ct(table=65)", true, []uint8{65}, 0, nil},
		{"ct(commit,zone=NXM_NX_REG1[0..15],exec(set_field:1->ct_mark))", true, nil, 0, nil},
		{"ct(force,commit,table=66,zone=7,alg=ftp)", true, []uint8{66}, 0, nil},
		{"clone(ct(commit,zone=9),ct(table=67))", true, []uint8{67}, 0, nil},
		{"ct_clear,output:1", false, nil, 0, nil},
		{"set_field:0->reg10", false, nil, exit, nil},
		{"load:0->NXM_NX_REG10[31]", false, nil, exit, nil},
		{"load:1->NXM_NX_REG10[31]", false, nil, 0, nil},
		{"load:1->NXM_NX_REG10[0..7]", false, nil, 0, nil},
		{"move:NXM_OF_IP_SRC[]->NXM_NX_REG10[]", false, nil, exit, nil},
		{"set_field:5->xreg5", false, nil, exit | 1<<11, nil},
		{"set_field:5->xxreg2", false, nil, 0xf00, nil},
		{"push:NXM_NX_REG1[],pop:NXM_NX_REG10[]", false, nil, 0xffff, nil},
		{"clone(set_field:0->reg10,output:1)", false, nil, exit, nil},
		{"group:5", false, nil, 0, []uint32{5}},
		{"group:5,resubmit(,60),group:0", false, []uint8{60}, 0, []uint32{5, 0}},
		{"clone(group:5,output:1)", false, nil, 0, []uint32{5}},
		{"write_actions(group:5)", false, nil, 0, []uint32{5}},
		{"set_field:10.0.0.9->ip_src,note:11.22,output:1", false, nil, 0, nil},
	} {
		b.addFlows("cookie=0x77,table=50,priority=5,tcp,ct_state=+trk-inv+est,ct_nw_proto=6,actions="+tc.actions, "cookie=0x77,table=51,priority=5,actions=resubmit(,99)",
			"cookie=0x6e6b700100000000,table=50,priority=7,actions=resubmit(,98)")
		var all []*flow.Flow
		must(t, c.EachForeign(t.Context(), Filter{Cookie: 0x6e6b70 << 40, CookieMask: 0xffffff << 40}, 50, 1,
			func(f *flow.Flow) { all = append(all, f) }, func() error { return nil }))
		if len(all) != 1 {
			t.Fatalf("%s: %v", tc.actions, all)
		}
		e := flow.EffectsOf(all[0].Actions)
		want := flow.Effects{Conntrack: tc.conntrack, Clears: tc.clears}
		for _, table := range tc.tables {
			want.GoTo(table)
		}
		for _, group := range tc.groups {
			want.Send(group)
		}
		if e != want || slices.ContainsFunc(tc.tables, func(table uint8) bool { return !e.LeadTo(table) }) || e.LeadTo(99) {
			t.Errorf("%s: %+v; want %+v", all[0], e, want)
		}
	}
}
