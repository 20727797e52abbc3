// Package fallback holds what iptables (package fallback/iptables) and nftables (package fallback/nftables)
// have in common. They are the data planes of Linux nodes without Open vSwitch. Alongside Open vSwitch, one
// of them serves what never crosses the bridge: if the node's address is outside the bridge, the node's own
// traffic and what arrives outside the bridge; if it is on the bridge, what the node sends to its own
// addresses (serving.Scope).
//
// A [Plane] follows the model (package k8s). For each family a [Worker] takes the changes, has the [Steps] of
// iptables or nftables program them, tries again what fails, and reports. Beside that are here the status,
// the cache of counters, the deletion of stale connections, the sysctl route_localnet, and the lock that
// keeps a second nkp out.
//
// It decides nothing about Services: endpoints in force, policies and refusals come from the model. Which of
// the two serves is the choice of package internal/agent.
//
// Start reading at [Plane]; the READMEs of the two packages document the tables, chains, hooks and marks.
package fallback
