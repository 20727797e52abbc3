// Package iptables serves Services with iptables.
//
// A worker compiles the changes of one family (package rules) and commits them with iptables-restore (package
// restore) in bounded transactions, each complete for its Services. At start it reads back the installed
// rules, kube-proxy's or its own of an earlier run, and writes only the differences; unwanted rules are
// deleted last. It detects and repairs a flush or edit by another program.
//
// Start reading at [New] and worker; README.md in this folder documents the tables, chains, hooks and marks.
package iptables
