// Package fallback serves Services with iptables or nftables. It is the data plane of Linux nodes without Open vSwitch. Alongside
// Open vSwitch, one of them serves the node's own traffic and traffic that arrives on a network card outside the bridge.
//
// A [Plane] follows the model (package k8s). For each family it compiles the changes (package fallback/iptables/rules) and
// commits them with iptables-restore (package fallback/iptables/restore) in bounded transactions, each complete for its Services. At
// start it reads back the installed rules, kube-proxy's or its own of an earlier run, and writes only the differences;
// unwanted rules are deleted last. It detects and repairs a flush or edit by another program.
//
// With nftables ([Options].NFTables), a nftWorker compiles the changes with package fallback/nftables/rules and commits them with package
// fallback/nftables/netlink.
//
// It decides nothing about Services: endpoints in force, policies and refusals come from the model.
//
// Start reading at [Plane]; README.md in this folder documents the tables, chains, hooks and marks, nft/README.md those of
// nftables.
package fallback
