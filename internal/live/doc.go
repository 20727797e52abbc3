// Package live compares the explanation of a packet (internal/trace) with what is installed on this node.
//
// A Switch asks ovs-vswitchd what its flows do with the packet (ofproto/trace, over the daemon's control socket), reads the
// groups that they lead to, and looks whether the connection exists already. Rules follow the packet through iptables'
// chains as iptables-save prints them. Nothing is sent and nothing is changed.
//
// It does not see what lies beyond: where the switch delivers a packet after an endpoint was chosen, and what other rules of
// the node do with it. `nkp diff` compares all that nkp installs.
//
// Start reading at Switch.Compare and Rules.Compare.
package live
