// Package pipeline turns the model of a cluster's Services (package k8s) into the flows and groups that
// serve them inside Open vSwitch.
//
// It is pure: no I/O, no clock, no OpenFlow library. The same model, layout and node facts always result in
// the same flows, whatever the order of events. So a restarted agent, a dry run on a laptop and a comparison
// with the switch all use the same flows. Package ofctrl sends them.
//
// Start reading at [Compiler]; README.md in this folder documents the tables, priorities, registers,
// conntrack zones, marks, cookies and group ids, and what other programs must not change.
package pipeline
