// Package fallback serves Services by iptables: the data plane of Linux nodes without Open vSwitch, and beside Open
// vSwitch that of the node's own traffic and of what arrives on a network card outside the bridge.
//
// A [Plane] follows the model (package k8s). For each family it compiles what changed (package fallback/rules) and commits
// it by iptables-restore (package fallback/xtables) in bounded transactions, each complete for its Services. At start it
// reads back what is there, kube-proxy's or its own of an earlier run, and writes only the differences; what is no longer
// wanted goes last. A flush or edit by another program is found and repaired.
//
// It decides nothing about Services: endpoints in force, policies and refusals come from the model.
//
// Start reading at [Plane]; README.md in this folder is the account of tables, chains, hooks and marks.
package fallback
