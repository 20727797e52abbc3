//go:build linux

package semantics

import (
	"fmt"
	"strings"
)

// switchState returns what a failure's reader wants to see of the switch.
func switchState(c *cluster) string {
	flows, _ := c.Ofctl("--no-stats", "dump-flows", c.Bridge, "table=1")
	tracked, _ := c.Appctl("dpctl/dump-conntrack")
	return fmt.Sprintf("table 1:\n%stracked:\n%s", tail(flows, 6000), tail(tracked, 3000))
}

// iptablesState is the same of the node's kernel.
func iptablesState(c *cluster) string {
	var b strings.Builder
	for _, argv := range [][]string{{"iptables-save", "-t", "nat"}, {"iptables-save", "-t", "filter"}, {"ip", "-4", "addr"}, {"ip", "-4", "route"}} {
		out, err := c.Exec(c.Node, argv...)
		fmt.Fprintf(&b, "%s (%v):\n%s", strings.Join(argv, " "), err, tail(out, 6000))
	}
	return b.String()
}

// nftablesState is the same of nkp's tables.
func nftablesState(c *cluster) string {
	out, err := c.Exec(c.Node, "nft", "list", "ruleset")
	return fmt.Sprintf("nft list ruleset (%v):\n%s", err, tail(out, 8000))
}
