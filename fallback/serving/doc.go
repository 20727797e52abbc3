// Package serving holds what the rules of iptables and nftables both depend on, in addition to the Services:
// which traffic is served, by which settings, on which node. It is pure: no I/O, no clock.
//
// Start reading at [Config] and [NewNode].
package serving
