// Package reject answers packets the way a host does on whose port nothing listens: a TCP segment gets a reset,
// anything else an ICMP or ICMPv6 "port unreachable".
//
// Open vSwitch has no action for this, so flows send such packets to the controller, which sends what
// [Answer] makes of them back by the port they came in. Answer is a pure function from frame to frame. A frame
// comes from the network: nothing in it is believed before it was checked.
package reject
