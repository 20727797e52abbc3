// Package rules turns the model of a cluster's Services (package k8s) into the iptables rules that serve them
// on a Linux node: the chains, names, hashes and comments of kube-proxy's iptables mode, so that tools and
// runbooks for those stay valid, and so that either can take over from the other in place.
//
// It is pure: no I/O, no clock. Rules are text as iptables-save prints it, so that installed and desired
// rules can be compared. Package iptables commits them to the kernel.
//
// Start reading at [Compiler]; README.md in the folder above documents the tables, chains, hooks and marks.
package rules
