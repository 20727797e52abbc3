// Package pipeline turns the model of a cluster's Services (package k8s) into the flows and groups that
// serve them inside Open vSwitch.
//
// It is pure: no I/O, no clock, no OpenFlow library. The same model, layout and node facts always give the
// same flows in any order of events, so that an agent which restarts, a dry run on a laptop and a
// comparison with the switch all speak of the same thing. Sending is package ofctrl's work.
//
// Start reading at [Compiler]; README.md in this folder is the account of tables, priorities, registers,
// conntrack zones, marks, cookies and group ids, and of what others must not touch.
package pipeline
