// Package reject answers packets as a host does when nothing listens on the port: a TCP segment gets a reset,
// anything else an ICMP or ICMPv6 "port unreachable".
//
// Open vSwitch has no action for this, so flows send such packets to the controller, which sends the result
// of [Answer] back out of the ingress port. Answer is a pure function from frame to frame. A frame comes from
// the network: every part of it is checked before it is used.
//
// [Segment] writes the packets of nkp's own probes, and reads what comes back.
package reject
