package restore

import "strings"

// unprintable begins what stands in a rule for an expression that iptables has no words for. No program takes
// such a rule.
const unprintable = "nft:"

// Unprintable reports whether iptables has no words for a rule.
func Unprintable(rule string) bool { return strings.Contains(rule, " "+unprintable) }
