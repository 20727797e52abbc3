// Package selftest finds out what the HNS of a Windows host makes of the objects that nkp creates. On a
// network and on addresses of its own it creates one object of each shape, compares what it asked for with
// what HNS stored, field by field, and deletes everything. The report is what a user attaches to an issue,
// and what the fake HNS of the tests replays (test/hnsfake).
//
// It proves nothing about the data path: no packet is sent.
//
// Start reading at Run.
package selftest
