//go:build linux

// The demo shows nkp at work on one machine: it builds a private Open vSwitch with pods as network namespaces
// ([testbed.Bed]), assigns them the addresses of the guestbook in examples/guestbook.yaml, has the real nkp binary follow
// a copy of that manifest, sends requests, edits the copy and prints what happened. Every number it prints is measured.
//
// It is run by "make demo"; start reading at [story]. It touches neither the machine's network nor its switch, and what
// it made goes when it ends, however it ends.
//
// What it is not: a test (see test/packets), a benchmark, or a way to run nkp.
package main
