// Package flow holds OpenFlow state as plain values: flows, groups, buckets, meters, and the difference
// between two states of a switch.
//
// Everything here is pure: no socket, no clock, no OpenFlow library. A value prints itself in the syntax
// that ovs-ofctl accepts (ovs-ofctl(8), ovs-actions(7), ovs-fields(7)), and that text is the dry run:
// package ofctrl encodes the very same values to OpenFlow 1.5 messages. Values compare with == where Go
// allows it (Match, every Action), so that a difference between two states needs no encoding.
//
// Only what nkp's pipeline uses is here. Start reading at [State] and [Flow].
//
// Byte order: all numbers are in host order; the encoder converts.
package flow
