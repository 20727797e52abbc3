//go:build linux

// Package packets tests nkp by packets: the real binary on a private Open vSwitch, Services in manifest files,
// connections between network namespaces. See test/testbed for the topology.
package packets
