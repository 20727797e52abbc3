// Package dpctl reads and changes the connection tracker of ovs-vswitchd by its dpctl commands (ovs-vswitchd(8), "Datapath
// Commands"), over the daemon's control socket. It is for what OpenFlow cannot say: to list connections, and, before Open
// vSwitch 3.1, to forget single ones.
//
// It does not know which connections are whose: that is the caller's. Start reading at Tracker.
package dpctl
