// Package live compares the explanation of a packet (internal/trace) with what is installed on this node.
//
// A Switch asks ovs-vswitchd what its flows do with the packet (ofproto/trace, over the daemon's control
// socket), for each endpoint that its groups can choose, until the packet leaves the bridge or is dropped. It
// compares the flows that the connection's packets and their answers can match with the desired ones, and
// searches conntrack for an existing connection. Rules follow the packet through nkp's iptables chains as
// iptables-save prints them. Tables take the paths that a packet and its answers take through the nftables of
// all owners (fallback/nftables/netlink). Nothing is sent and nothing is changed.
//
// It does not see what lies beyond the bridge.
//
// Start reading at Switch.Compare, Rules.Compare and Tables.Compare.
package live
