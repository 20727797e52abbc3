package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/serving"
)

// Flowtable is the name of the table's flowtable: nf_tables' software fast path, which forwards packets of
// the connections in it from the ingress hook of one device to the next device, past conntrack's lookup,
// routing and all chains of hooks prerouting, forward and postrouting.
const Flowtable = "fast"

// MaxDevices bounds the devices of a flowtable. The value is that of one message to the kernel
// (NFT_NETDEVICE_MAX in nf_tables.h).
const MaxDevices = 256

// maxDeviceName is the length in bytes of the longest device name (IFNAMSIZ in if.h, without the final NUL).
const maxDeviceName = 15

// CheckDevices returns an error that names the first pattern that no device can have. A pattern is a name, or
// ends in * and matches all names that begin with the rest.
func CheckDevices(patterns []string) error {
	for _, p := range patterns {
		name := strings.TrimSuffix(p, "*")
		if p == "" || len(name) > maxDeviceName || strings.ContainsAny(name, "*/ \t\n") {
			return fmt.Errorf("%q is neither a device's name (1 to %d characters) "+
				"nor the beginning of names with * at the end", p, maxDeviceName)
		}
	}
	return nil
}

// ErrTooManyDevices is why devices are left out that a pattern matches.
var ErrTooManyDevices = fmt.Errorf("a flowtable has %d devices at most", MaxDevices)

// MatchDevices returns the names that a pattern matches: those that are in the flowtable first, in order, and
// MaxDevices at most. left is the number of further ones.
func MatchDevices(patterns, names, in []string) (match []string, left int) {
	for _, n := range names {
		if slices.ContainsFunc(patterns, func(p string) bool {
			prefix, is := strings.CutSuffix(p, "*")
			return p == n || is && strings.HasPrefix(n, prefix)
		}) {
			match = append(match, n)
		}
	}
	rank := func(name string) int {
		if slices.Contains(in, name) {
			return 0
		}
		return 1
	}
	slices.SortFunc(match, func(a, b string) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a, b)) })
	n := min(len(match), MaxDevices)
	return match[:n], len(match) - n
}

// FlowtableFeature is what Config.FlowtableDevices needs of the kernel beyond Features: one with
// CONFIG_NF_FLOW_TABLE, and devices that come and go.
func FlowtableFeature() []Feature {
	return []Feature{{
		Name:      "flowtables (CONFIG_NF_FLOW_TABLE)",
		Since:     "5.8",
		Flowtable: true,
		Chains:    []Chain{fastPath(nil)},
	}}
}

// Devices returns the patterns of the flowtable's devices; empty: the table has no flowtable, because nothing
// is forwarded through it or none is wanted.
func (c *Compiler) Devices() []string {
	if c.Scope == serving.Own {
		return nil
	}
	return c.FlowtableDevices
}

// fastPath returns the chain that puts established connections into the flowtable. It is behind the chains
// that filter: what these drop is not put in.
func fastPath(match Rule) Chain {
	return Chain{Name: "fast-path", Hook: Hook{"filter", "forward", priorityFastPath},
		Rules: []Rule{append(match, State{Established}, Translated{}, FlowAdd{Flowtable})}}
}
