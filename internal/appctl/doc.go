// Package appctl speaks to the control socket of an Open vSwitch daemon, as ovs-appctl does, without running it: the
// socket takes JSON-RPC 1.0 (ovs-vswitchd's unixctl), one request with texts as parameters, one reply with a text.
//
// Commands and their replies are opaque to it: their meaning is the caller's. Start reading at Call.
package appctl
