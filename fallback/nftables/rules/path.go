package rules

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
)

// Packet is the first packet of a connection, as it comes to the node or as one of the node's processes sends
// it; or an answer to it.
type Packet struct {
	Protocol k8s.Protocol
	From, To netip.AddrPort
	FromNode bool
	Reply    *Reply // what it answers; nil: it is the first packet
	// Device is the device by which it comes in, or with a * at the end the beginning of its name. "" is one
	// that is none of NotDevices, which may end in * too.
	Device     string
	NotDevices []string
	Local      []netip.Addr // the node's addresses, except loopback ones
	// IPTables is what iptables' table nat does with the packet; nil: that table is evaluated as all others.
	IPTables *IPTables
}

// IPTables describes the translations by iptables' table nat, which nf_tables does not have if the rules are
// legacy ones.
type IPTables struct {
	Paths []Path // with Endpoint and Masquerade; none: the packet is not translated
	Mark  uint32 // of a packet that is to be masqueraded
}

// Reply describes the connection of an answer, from From, the endpoint, to To, the client.
type Reply struct {
	Service    netip.AddrPort // to which the client has sent the first packet
	Masquerade bool           // the endpoint sees another client, and sends the answer there
}

// IsLocal reports whether an address is one of the node's.
func (p *Packet) IsLocal(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	for _, l := range p.Local {
		if l == a {
			return true
		}
	}
	return false
}

// Verdict is what becomes of a packet in the node's tables.
type Verdict uint8

// The verdicts.
const (
	Accepted Verdict = iota
	Dropped
	Rejected
	Unknown // an expression that nkp does not evaluate decides
)

// Path is one path that a packet can take.
type Path struct {
	Verdict    Verdict
	Endpoint   netip.AddrPort // the translated destination; not valid: it is not translated
	Masquerade bool
	At         string // the table and chain where it ends; "": it is accepted
	// Doubt is set if the packet takes this path or another by something that nkp does not know. Without it,
	// chance decides.
	Doubt bool
}
