// Package rules computes the nftables tables that serve Services: what a model compiles to, as comparable
// values. It opens no socket; package fallback/nftables/netlink installs the values, and Ruleset.String
// prints them as input for nft -f.
//
// The design is in README.md in the folder above: a fixed set of chains, and maps whose elements are the
// Services. Start reading at [Compiler].
package rules
