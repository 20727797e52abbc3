// Package appctl speaks to the control socket of an Open vSwitch daemon, as ovs-appctl does, without running it: the
// socket takes JSON-RPC 1.0 (ovs-vswitchd's unixctl), one request with texts as parameters, one reply with a text.
//
// It knows no command: what is asked, and what the answer means, is the caller's. Start reading at Call.
package appctl
