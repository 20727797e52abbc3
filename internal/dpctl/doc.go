// Package dpctl speaks to the control socket of ovs-vswitchd, as ovs-appctl does, without running it. It does
// what OpenFlow cannot: list conntrack entries and, before Open vSwitch 3.1, delete single ones (dpctl/…,
// ovs-vswitchd(8), "Datapath Commands"); read how full the datapath's tables are; follow a packet through the
// flow tables (ofproto/trace).
//
// The caller decides which connections belong to a Service. Start reading at Daemon.
package dpctl
