// Package wait holds the waits of all tests, so that load cannot fail a test: a test waits for an event, and [Limit] catches only
// what never happens. It depends on no other package of nkp, and works on every system.
//
// A test must not assert how long something took. What is to be fast is tested by what it costs: messages, bundles, bytes, calls.
package wait
