// Package ovsdb reads the switch's own database (Open_vSwitch, RFC 7047): which
// bridges there are, which OpenFlow versions a bridge speaks, which ports it has
// and which pods sit behind them.
//
// Start reading at [Connect] and [Switch]. A [Client] keeps a snapshot of one
// bridge up to date and survives restarts of the server: after each connection
// it lists everything again, so rows that were deleted meanwhile are gone from the
// snapshot too. Events only say that something changed. A server that has
// stopped without closing the connection is noticed by a probe that it does not
// answer.
//
// What stands in the way of programming a bridge is told by [Switch.Check] with
// typed errors whose text says what to do. The package writes one thing only,
// and only when asked: [Client.EnableOpenFlow15].
//
// Rows are untrusted: anybody who can write to the database can write anything
// that its schema allows. Values that make no sense are left out of the snapshot
// and named in [Switch.Warnings]. The server is not trusted either: one that sends
// what is no JSON-RPC, schema or row, or sends without end, loses its connection
// (session.go), and the last snapshot stays.
//
// It knows nothing of Services, and it does not speak OpenFlow.
package ovsdb
