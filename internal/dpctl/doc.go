// Package dpctl reads and changes the connection tracker of ovs-vswitchd by its dpctl commands (ovs-vswitchd(8), "Datapath
// Commands"), over the daemon's control socket. It does what OpenFlow cannot: list conntrack entries and, before Open
// vSwitch 3.1, delete single ones.
//
// The caller decides which connections belong to a Service. Start reading at Tracker.
package dpctl
