package ofctrl

import "github.com/nkp-proxy/nkp/pipeline/flow"

// OXM and NXM field headers: class, field, has-mask bit (clear here) and payload length in bytes
// (OpenFlow 1.5.1 §7.2.3.2; ovs-fields(7)). A test compares them with libOpenflow's table.
const (
	oxmInPort     uint32 = 0x80000004
	oxmEthDst     uint32 = 0x80000606
	oxmEthSrc     uint32 = 0x80000806
	oxmEthType    uint32 = 0x80000a02
	oxmVLANVID    uint32 = 0x80000c02
	oxmIPProto    uint32 = 0x80001401
	oxmIPv4Src    uint32 = 0x80001604
	oxmIPv4Dst    uint32 = 0x80001804
	oxmTCPSrc     uint32 = 0x80001a02
	oxmTCPDst     uint32 = 0x80001c02
	oxmUDPSrc     uint32 = 0x80001e02
	oxmUDPDst     uint32 = 0x80002002
	oxmSCTPDst    uint32 = 0x80002402
	oxmICMPv4Type uint32 = 0x80002601
	oxmIPv6Src    uint32 = 0x80003410
	oxmIPv6Dst    uint32 = 0x80003610
	oxmICMPv6Type uint32 = 0x80003a01
	oxmTCPFlags   uint32 = 0x80005402 // OpenFlow 1.5's own, which libOpenflow does not name
	oxmPktReg0    uint32 = 0x80010008 // reg0 and reg1 as one 64-bit register
	oxmPktReg1    uint32 = 0x80010208
	oxmPktReg7    uint32 = 0x80010e08
	nxmInPort     uint32 = 0x00000002
	nxmEthDst     uint32 = 0x00000206
	nxmEthSrc     uint32 = 0x00000406
	nxmEthType    uint32 = 0x00000602
	nxmIPSrc      uint32 = 0x00000e04
	nxmIPDst      uint32 = 0x00001004
	nxmReg0       uint32 = 0x00010004
	nxmReg1       uint32 = 0x00010204
	nxmReg2       uint32 = 0x00010404
	nxmReg3       uint32 = 0x00010604
	nxmReg15      uint32 = 0x00011e04
	nxmXXReg0     uint32 = 0x0001de10 // reg0 to reg3 as one 128-bit register
	nxmXXReg1     uint32 = 0x0001e010
	nxmIPv6Src    uint32 = 0x00012610
	nxmIPv6Dst    uint32 = 0x00012810
	nxmFrag       uint32 = 0x00013401
	nxmTTL        uint32 = 0x00013a01
	nxmDPHash     uint32 = 0x00014604
	nxmCTState    uint32 = 0x0001d204
	nxmCTZone     uint32 = 0x0001d402
	nxmCTMark     uint32 = 0x0001d604
	nxmCTProto    uint32 = 0x0001ee01
	nxmCTIPv6Dst  uint32 = 0x0001f610
	nxmCTSrcPort  uint32 = 0x0001f802
	nxmCTDstPort  uint32 = 0x0001fa02
)

// portBits is the mask of all bits of a transport port.
const portBits = 1<<16 - 1

// tcpFlags is the mask of all TCP flags that a switch distinguishes (ovs-fields(7), tcp_flags).
const tcpFlags = 0x0fff

// vlanPresent is the bit of VLAN_VID that tagged packets have (OpenFlow 1.5.1 §7.2.3.7, OFPVID_PRESENT).
const vlanPresent = 0x1000

// fragBits is the mask of all bits of nw_frag.
const fragBits = flow.FragAny | flow.FragLater

// nxmReg returns the header of a register, 0 to 15.
func nxmReg(n uint8) uint32 { return nxmReg0 + uint32(n)*(nxmReg1-nxmReg0) }

// regNumber is the inverse of nxmReg; ok is false for the header of another field.
func regNumber(h uint32) (n uint8, ok bool) {
	ok = h >= nxmReg0 && h <= nxmReg15 && (h-nxmReg0)%(nxmReg1-nxmReg0) == 0
	return uint8((h - nxmReg0) / (nxmReg1 - nxmReg0)), ok
}

// masked returns the header of the same field with a mask behind the value.
func masked(h uint32) uint32 { return h&^0xff | 1<<8 | h&0xff*2 }

// unmasked splits a header on the wire into the plain field header and whether a mask follows the value.
// The length is halved, so that the result compares with the constants; an odd length matches none of them.
func unmasked(h uint32) (field uint32, hasMask bool) {
	if h&(1<<8) == 0 {
		return h, false
	}
	if h&1 != 0 {
		return h, true
	}
	return h&^0x1ff | h&0xff/2, true
}
