// Package rules turns the model of a cluster's Services (package k8s) into the iptables rules that serve them on a Linux
// node: the chains, names, hashes and comments of kube-proxy's iptables mode, so that tools, runbooks and eyes that know
// those keep working, and so that either can take over from the other in place.
//
// It is pure: no I/O, no clock. Rules are texts as iptables-save prints them, so that what is installed can be compared
// with what should be. Bringing them to the kernel is package fallback's work.
//
// Start reading at [Compiler]; README.md of package fallback is the account of tables, chains, hooks and marks.
package rules
