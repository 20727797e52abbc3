// Package httpguard makes HTTP servers that no client can keep from answering the others: every wait for a
// client has an end, and where there are too many connections the one of least use goes.
//
// It does not know what is served. Start reading at [Guard]; a [Listener] serves one handler at one address.
package httpguard
