// Package ofctrl is the OpenFlow channel to a switch: one connection, ordered; transactions that either
// install everything or nothing and name the object that was refused; reading back what is installed;
// packet-in and packet-out; counters. It speaks OpenFlow 1.5 with Open vSwitch's extensions. It does not deal
// with Services, only with the values of package flow.
//
// Start reading at [Conn]. [Dial] opens one, [Conn.Commit] changes the switch, [Conn.ReadBack] reads its
// state. [Client] keeps a connection alive for a daemon.
//
// It is not a controller framework. Actions, fields and group properties are built by antrea.io/ofnet and
// antrea.io/libOpenflow (see template.go); connection, ordering, transactions and decoding are done here,
// because replies must be matched to requests in the order they arrive, and because frames from a switch are
// not to be trusted: every length is checked before it is used.
//
// # Concurrency
//
// All methods of Conn and Client may be called from any goroutine. Commits of one Conn run one after another.
// Per Conn there are four goroutines: the reader, the writer, the keep-alive and the one that runs callbacks.
// Close stops them all and waits for them.
//
// # Debugging
//
// The environment variable NKP_DEBUG is a comma-separated list. "openflow" prints a line per message to
// standard error: direction, type, transaction id, length. "openflow-hex" prints the bytes, too.
//
// # Units and byte order
//
// Everything is in host order and network order only on the wire. Section numbers are those of the OpenFlow
// Switch Specification 1.5.1 (ONF TS-025).
package ofctrl
