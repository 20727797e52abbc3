package dpctl

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Connection is a conntrack entry. In JSON it is part of ServiceInfo of internal/agent.
type Connection struct {
	Protocol k8s.Protocol `json:"-"`
	// Client and Frontend are its first packet's source and destination, Endpoint what answers it.
	Client   netip.AddrPort `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	Endpoint netip.AddrPort `json:"endpoint"`
	// Seen is the address to which the endpoint replies: the client's, or the one it was masqueraded as. The
	// zero Addr: unknown.
	Seen  netip.Addr `json:"-"`
	Zone  uint16     `json:"-"`
	Mark  uint32     `json:"-"`
	State string     `json:"state,omitempty"` // of TCP; "" if there is none
	// Unanswered is set if no packet has come back. The userspace datapath does not say so: there it is set
	// for a UDP connection that expires later than an answered one can.
	Unanswered bool `json:"unanswered,omitempty"`
	// Refused is set if the endpoint reset a TCP connection before it was established. Only EachDetailed on
	// the userspace datapath sets it.
	Refused bool `json:"refused,omitempty"`
	// Expires is the time until the entry expires, in seconds; 0: not known.
	Expires uint32 `json:"expiresSeconds,omitempty"`
}

// udpMultiple is the timeout in seconds of an answered UDP connection on the userspace datapath, which
// Open vSwitch calls udp_multiple; one that has no answer has 60 (lib/conntrack-tp.c,
// netdev_default_ct_dpif_timeouts).
const udpMultiple = 30

// IPProto returns IANA's number of the connection's protocol.
func (c *Connection) IPProto() uint8 { return k8s.ProtocolNumbers[c.Protocol] }

// String returns the connection in one line.
func (c *Connection) String() string {
	state := ""
	if c.State != "" {
		state = ", " + c.State
	}
	return fmt.Sprintf("%s from %s to %s%s", c.Protocol, c.Client, c.Frontend, state)
}

// parseConnection reads a line of the answer of dpctl/dump-conntrack (Open vSwitch: lib/ct-dpif.c,
// ct_dpif_format_entry). It reports whether this is a TCP, UDP or SCTP connection.
func parseConnection(line string) (c Connection, ok bool) {
	proto, rest, _ := strings.Cut(line, ",")
	c.Protocol = k8s.Protocol(strings.ToUpper(proto))
	if k8s.ProtocolNumbers[c.Protocol] == 0 {
		return c, false
	}
	orig, reply := parenthesis(rest, "orig=("), parenthesis(rest, "reply=(")
	c.Client, c.Frontend = address(orig, "src=", "sport="), address(orig, "dst=", "dport=")
	c.Endpoint, c.Seen = address(reply, "src=", "sport="), address(reply, "dst=", "dport=").Addr()
	if !c.Client.IsValid() || !c.Frontend.IsValid() || !c.Endpoint.IsValid() {
		return c, false
	}

	zone, _ := strconv.ParseUint(field(rest, ",zone="), 10, 16)
	mark, _ := strconv.ParseUint(field(rest, ",mark="), 0, 32)
	expires, _ := strconv.ParseUint(field(rest, ",timeout="), 10, 32)
	c.Zone, c.Mark, c.Expires = uint16(zone), uint32(mark), uint32(expires)
	c.readInfo(parenthesis(rest, "protoinfo=("))
	if status := field(rest, ",status="); status == "0" { // of the userspace datapath
		c.Unanswered = c.Protocol == "UDP" && c.Expires > udpMultiple
	} else {
		c.Unanswered = status != "" && !strings.Contains(status, "SEEN_REPLY")
	}
	return c, true
}

// readInfo parses the TCP state. A detailed listing has one for each direction. There the userspace datapath
// has TIME_WAIT in both directions for a refused connection, as for a closed one. A refused one is recognized
// by its window scaling: the client still has it and the endpoint has none, because a SYN-ACK would have set
// the latter or removed the former (Open vSwitch: lib/conntrack-tcp.c).
func (c *Connection) readInfo(info string) {
	c.State = field(info, "state=")
	if orig, reply := field(info, "state_orig="), field(info, "state_reply="); orig != "" {
		if c.State = orig; orig == "FIN_WAIT_2" && reply == orig {
			c.State = "TIME_WAIT"
		}
		scaled := strings.Contains(field(info, "flags_orig="), "WINDOW_SCALE") &&
			field(info, "flags_reply=") == "0"
		c.Refused = orig == "CLOSED" || orig == "TIME_WAIT" && reply == orig && scaled
	}
}

// parenthesis returns the text between begin and the next closing parenthesis; "": there is none.
func parenthesis(s, begin string) string {
	_, after, _ := strings.Cut(s, begin)
	inside, _, _ := strings.Cut(after, ")")
	return inside
}

// field returns the text between begin and the next comma; "": there is none.
func field(s, begin string) string {
	_, after, _ := strings.Cut(s, begin)
	value, _, _ := strings.Cut(after, ",")
	return value
}

// address reads an address and a port. The zero AddrPort: there is none.
func address(tuple, ip, port string) netip.AddrPort {
	a, err := netip.ParseAddr(field(tuple, ip))
	p, _ := strconv.ParseUint(field(tuple, port), 10, 16)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(p))
}
