// Package localhost serves TCP NodePorts at [::1] by a proxy in user space.
//
// The kernel translates connections to NodePorts at 127.0.0.1 and sends them to endpoints, with the setting
// route_localnet. IPv6 has no such setting: a packet with the source ::1 never leaves the node. So nkp itself
// listens at [::1], for each NodePort that has endpoints, and copies what a client sends to a connection of
// its own, whose source is the node's address (KEP-6032, docs/decisions/localhost-nodeports.md).
//
// It is for TCP alone, and only where --nodeport-addresses names ::1. It takes no port from another process:
// a port in use is reported, and tried again until it is free.
//
// Start reading at [Proxy].
package localhost
