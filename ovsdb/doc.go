// Package ovsdb reads the switch's own database (Open_vSwitch, RFC 7047): which
// bridges there are, which OpenFlow versions a bridge speaks, which ports it has
// and which pods sit behind them.
//
// Start reading at [Connect] and [Switch]. A [Client] keeps a snapshot of one
// bridge up to date and survives restarts of the server: after each connection
// it lists everything again, so rows that were deleted meanwhile are gone from the
// snapshot too. Events only say that something changed. An unanswered probe
// detects a server that has stopped without closing the connection.
//
// [Switch.Check] reports what prevents nkp from programming a bridge, as typed
// errors whose text says what to do. The package writes to the database only in
// [Client.EnableOpenFlow15].
//
// Rows are untrusted: anybody who can write to the database can write anything
// that its schema allows. Invalid values are left out of the snapshot and listed
// in [Switch.Warnings]. The server is not trusted either: if it sends malformed
// messages, schemas or rows, or too much, the client closes the connection
// (session.go) and keeps the last snapshot.
//
// The package deals with neither Services nor OpenFlow messages.
package ovsdb
