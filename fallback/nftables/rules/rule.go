package rules

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Field is a value that a rule reads from a packet or its connection.
type Field uint8

// The fields.
const (
	Saddr         Field = iota // source address
	Daddr                      // destination address
	L4Proto                    // transport protocol
	Dport                      // destination port
	OriginalDaddr              // destination address of the connection's first packet, as its client sent it
	OriginalDport              // the same port
)

var fieldText = map[Field]string{
	Saddr:         "saddr",
	Daddr:         "daddr",
	L4Proto:       "meta l4proto",
	Dport:         "th dport",
	OriginalDaddr: "daddr",
	OriginalDport: "ct original proto-dst",
}

// Rule is a rule of a chain. Its statements are evaluated in order, until one does not match.
type Rule []Statement

// Statement is a part of a rule: one of the types below.
type Statement interface {
	// text returns the statement in nft's syntax.
	text(f k8s.Family) string
}

// The statements.
type (
	// Prefix matches an address in a prefix, or not in it.
	Prefix struct {
		Field Field
		Not   bool
		netip.Prefix
	}
	// Device matches the input device; a name that ends in * matches all that begin with it.
	Device struct {
		Name string
		Not  bool
	}
	// Local matches an address that is one of the node's.
	Local struct{ Field Field }
	// Protocol matches the transport protocol.
	Protocol struct{ Number uint8 }
	// EchoRequest matches ICMP and ICMPv6 echo requests.
	EchoRequest struct{}
	// NoSYN matches TCP segments that do not open a connection.
	NoSYN struct{}
	// State matches states of connection tracking.
	State struct{ CtState }
	// Translated matches connections whose destination was translated.
	Translated struct{}
	// Answer matches packets from endpoints to clients, or those from clients to endpoints.
	Answer struct{ Is bool }
	// Marked matches packets that have a bit in their mark.
	Marked struct{ Bit int }
	// In matches packets whose fields are in a set.
	In struct {
		Key []Field
		Set string
	}
	// ClientIn matches packets whose source, with Mask and Bits applied, and destination are in a set.
	ClientIn struct {
		Mask, Bits netip.Addr
		Set        string
	}
	// Lookup looks the fields up in a verdict map. Where it finds nothing, the next rule follows.
	Lookup struct {
		Key []Field
		Map string
	}
	// DNAT translates the destination to what a map has for the fields and a random number from Offset to
	// Offset+Modulus-1; without Modulus, for the fields alone. Where the map has nothing, the next rule
	// follows. At, if it is valid, takes the place of the first field, Daddr.
	DNAT struct {
		Key             []Field
		At              netip.Addr
		Modulus, Offset uint32
		Map             string
	}
	// DNATTo translates the destination to an address.
	DNATTo struct{ netip.Addr }
	// RememberEndpoint adds the source address and its endpoint to a map, or renews them.
	RememberEndpoint struct{ Map string }
	// SetMark sets or clears a bit of the packet mark.
	SetMark struct {
		Bit int
		On  bool
	}
	// Masquerade translates the source to the node's address, at a port from Min to Max; 0 and 0: at any,
	// chosen at random.
	Masquerade struct{ Min, Max uint16 }
	// Goto continues in a chain and does not return.
	Goto struct{ Chain string }
	// Jump continues in a chain and returns at its end.
	Jump struct{ Chain string }
	// Above matches packets beyond a rate, by the second, and as many at once.
	Above struct{ Rate uint32 }
	// Counter counts packets.
	Counter struct{}
	// Return ends the chain.
	Return struct{}
	// FlowAdd puts the connection into a flowtable; packets of a protocol other than TCP and UDP, or with FIN
	// or RST, are left alone.
	FlowAdd struct{ Flowtable string }
	// Drop drops the packet.
	Drop struct{}
	// Reject answers with ICMP port unreachable, or with a TCP reset.
	Reject struct{ Reset bool }
)

// CtState is a state of connection tracking; the values are the kernel's (NF_CT_STATE_BIT).
type CtState uint32

// The states.
const (
	Invalid     CtState = 1
	Established CtState = 2
	Related     CtState = 4
	New         CtState = 8
)

func (s CtState) String() string {
	var names []string
	for _, n := range []struct {
		CtState
		name string
	}{{Invalid, "invalid"}, {Established, "established"}, {Related, "related"}, {New, "new"}} {
		if s&n.CtState != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ",")
}

func ip(f k8s.Family) string {
	if f == k8s.IPv6 {
		return "ip6"
	}
	return "ip"
}

func (x Field) text(f k8s.Family) string {
	switch x {
	case Saddr, Daddr:
		return ip(f) + " " + fieldText[x]
	case OriginalDaddr:
		return "ct original " + ip(f) + " " + fieldText[x]
	}
	return fieldText[x]
}

func concat(f k8s.Family, key []Field) string {
	parts := make([]string, len(key))
	for i, x := range key {
		parts[i] = x.text(f)
	}
	return strings.Join(parts, " . ")
}

func not(n bool) string {
	if n {
		return "!= "
	}
	return ""
}

func (s Prefix) text(f k8s.Family) string {
	return s.Field.text(f) + " " + not(s.Not) + s.Prefix.String()
}
func (s Device) text(k8s.Family) string { return "iifname " + not(s.Not) + `"` + s.Name + `"` }
func (s Local) text(k8s.Family) string  { return "fib " + fieldText[s.Field] + " type local" }
func (s Protocol) text(k8s.Family) string {
	return "meta l4proto " + protoName(s.Number)
}
func (EchoRequest) text(f k8s.Family) string {
	if f == k8s.IPv6 {
		return "icmpv6 type echo-request"
	}
	return "icmp type echo-request"
}
func (s ClientIn) text(f k8s.Family) string {
	return fmt.Sprintf("%s & %v | %v . %s @%s", Saddr.text(f), s.Mask, s.Bits, Daddr.text(f), s.Set)
}
func (s DNATTo) text(f k8s.Family) string { return "dnat " + ip(f) + " to " + s.Addr.String() }
func (s Above) text(k8s.Family) string {
	return fmt.Sprintf("limit rate over %d/second burst %d packets", s.Rate, s.Rate)
}
func (NoSYN) text(k8s.Family) string      { return "tcp flags & syn == 0x0" }
func (s State) text(k8s.Family) string    { return "ct state " + s.CtState.String() }
func (Translated) text(k8s.Family) string { return "ct status dnat" }
func (s Answer) text(k8s.Family) string {
	if s.Is {
		return "ct direction reply"
	}
	return "ct direction original"
}
func (s Marked) text(k8s.Family) string {
	return fmt.Sprintf("meta mark & %#08x == %#08x", uint32(1)<<s.Bit, uint32(1)<<s.Bit)
}
func (s In) text(f k8s.Family) string     { return concat(f, s.Key) + " @" + s.Set }
func (s Lookup) text(f k8s.Family) string { return concat(f, s.Key) + " vmap @" + s.Map }
func (s DNAT) text(f k8s.Family) string {
	from := concat(f, s.Key)
	if s.At.IsValid() { // nft has no constants in a concatenation
		daddr := Daddr.text(f)
		from = fmt.Sprintf("%s & %v | %v", daddr, f.Unspecified(), s.At) + strings.TrimPrefix(from, daddr)
	}
	if s.Modulus > 0 {
		from += fmt.Sprintf(" . numgen random mod %d", s.Modulus)
		if s.Offset > 0 {
			from += fmt.Sprintf(" offset %d", s.Offset)
		}
	}
	return "dnat " + ip(f) + " to " + from + " map @" + s.Map
}
func (s RememberEndpoint) text(f k8s.Family) string {
	return fmt.Sprintf("update @%s { %s : %s }", s.Map, Saddr.text(f), concat(f, []Field{Daddr, Dport}))
}
func (s SetMark) text(k8s.Family) string {
	bit := uint32(1) << s.Bit
	if s.On {
		return fmt.Sprintf("meta mark set meta mark or %#08x", bit)
	}
	return fmt.Sprintf("meta mark set meta mark and %#08x", ^bit)
}
func (s Masquerade) text(k8s.Family) string {
	if s.Max == 0 {
		return "masquerade fully-random"
	}
	return fmt.Sprintf("masquerade to :%d-%d", s.Min, s.Max)
}
func (s Goto) text(k8s.Family) string  { return "goto " + s.Chain }
func (s Jump) text(k8s.Family) string  { return "jump " + s.Chain }
func (Counter) text(k8s.Family) string { return "counter" }
func (Return) text(k8s.Family) string  { return "return" }
func (s FlowAdd) text(k8s.Family) string {
	return "flow add @" + s.Flowtable
}
func (Drop) text(k8s.Family) string { return "drop" }
func (s Reject) text(f k8s.Family) string {
	if s.Reset {
		return "reject with tcp reset"
	}
	if f == k8s.IPv6 {
		return "reject with icmpv6 type port-unreachable"
	}
	return "reject with icmp type port-unreachable"
}

// Text returns the rule in nft's syntax.
func (r Rule) Text(f k8s.Family) string {
	parts := make([]string, len(r))
	for i, s := range r {
		parts[i] = s.text(f)
	}
	return strings.Join(parts, " ")
}
