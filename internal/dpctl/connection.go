package dpctl

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Connection is a conntrack entry.
type Connection struct {
	Protocol k8s.Protocol
	// Client and Frontend are its first packet's source and destination, Endpoint what answers it.
	Client, Frontend, Endpoint netip.AddrPort
	// Seen is the address to which the endpoint replies: the client's, or the one it was masqueraded as. The zero Addr: unknown.
	Seen  netip.Addr
	Zone  uint16
	Mark  uint32
	State string // of TCP; "" if there is none
	// Refused is set if the endpoint reset a TCP connection before it was established. Only EachDetailed on the
	// userspace datapath sets it.
	Refused bool
	// Expires is the time until the entry expires, in seconds; 0: not known.
	Expires uint32
}

// protocolNumbers are the protocols whose connections have ports, by IANA's numbers.
var protocolNumbers = map[k8s.Protocol]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}

// IPProto returns IANA's number of the connection's protocol.
func (c *Connection) IPProto() uint8 { return protocolNumbers[c.Protocol] }

// String returns the connection in one line.
func (c *Connection) String() string {
	state := ""
	if c.State != "" {
		state = ", " + c.State
	}
	return fmt.Sprintf("%s from %s to %s%s", c.Protocol, c.Client, c.Frontend, state)
}

// parseConnection reads a line of the answer of dpctl/dump-conntrack (Open vSwitch: lib/ct-dpif.c, ct_dpif_format_entry). It
// reports whether this is a TCP, UDP or SCTP connection.
func parseConnection(line string) (c Connection, ok bool) {
	proto, rest, _ := strings.Cut(line, ",")
	c.Protocol = k8s.Protocol(strings.ToUpper(proto))
	if protocolNumbers[c.Protocol] == 0 {
		return c, false
	}
	orig, _, ok1 := parenthesis(rest, "orig=(")
	reply, _, ok2 := parenthesis(rest, "reply=(")
	if !ok1 || !ok2 {
		return c, false
	}
	c.Client, c.Frontend = tuple(orig)
	c.Endpoint, _ = tuple(reply)
	_, to := tuple(reply)
	c.Seen = to.Addr()
	if !c.Client.IsValid() || !c.Frontend.IsValid() || !c.Endpoint.IsValid() {
		return c, false
	}
	for word := range strings.SplitSeq(rest, ",") {
		switch k, v, _ := strings.Cut(word, "="); k {
		case "zone":
			n, _ := strconv.ParseUint(v, 10, 16)
			c.Zone = uint16(n)
		case "mark":
			n, _ := strconv.ParseUint(v, 0, 32)
			c.Mark = uint32(n)
		case "timeout":
			n, _ := strconv.ParseUint(v, 10, 32)
			c.Expires = uint32(n)
		}
	}
	if info, _, ok := parenthesis(rest, "protoinfo=("); ok {
		c.readInfo(info)
	}
	return c, true
}

// readInfo parses the TCP state. A detailed listing has one for each direction. There the userspace datapath has TIME_WAIT in both
// directions for a refused connection, as for a closed one. A refused one is recognized by its window scaling: the client still has
// it and the endpoint has none, because a SYN-ACK would have set the latter or removed the former (Open vSwitch:
// lib/conntrack-tcp.c).
func (c *Connection) readInfo(info string) {
	words := map[string]string{}
	for word := range strings.SplitSeq(info, ",") {
		k, v, _ := strings.Cut(word, "=")
		words[k] = v
	}
	c.State = words["state"]
	if orig, reply := words["state_orig"], words["state_reply"]; orig != "" {
		if c.State = orig; orig == "FIN_WAIT_2" && reply == orig {
			c.State = "TIME_WAIT"
		}
		c.Refused = orig == "CLOSED" ||
			orig == "TIME_WAIT" && reply == orig && strings.Contains(words["flags_orig"], "WINDOW_SCALE") && words["flags_reply"] == "0"
	}
}

// parenthesis returns the text between begin and the next closing parenthesis, and the rest.
func parenthesis(s, begin string) (inside, rest string, ok bool) {
	_, after, ok := strings.Cut(s, begin)
	if !ok {
		return "", s, false
	}
	return strings.Cut(after, ")")
}

// tuple reads src=…,dst=…,sport=…,dport=….
func tuple(s string) (src, dst netip.AddrPort) {
	var from, to, sport, dport string
	for word := range strings.SplitSeq(s, ",") {
		switch k, v, _ := strings.Cut(word, "="); k {
		case "src":
			from = v
		case "dst":
			to = v
		case "sport":
			sport = v
		case "dport":
			dport = v
		}
	}
	at := func(ip, port string) netip.AddrPort {
		a, err := netip.ParseAddr(ip)
		p, _ := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(a.Unmap(), uint16(p))
	}
	return at(from, sport), at(to, dport)
}
