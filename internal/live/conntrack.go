package live

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// Connection is a connection that a tracker knows.
type Connection struct {
	Protocol k8s.Protocol
	// Client and Frontend are its first packet's source and destination, Endpoint what answers it.
	Client, Frontend, Endpoint netip.AddrPort
	// Seen is the address that the endpoint answers: the client's, or what it was masqueraded as. The zero Addr: unknown.
	Seen  netip.Addr
	Zone  uint16
	Mark  uint32
	State string // of TCP; "" if there is none
}

// of tells whether a connection is the one that the question is about: any of them, if the question leaves the client's port open.
func (c *Connection) of(q trace.Question) bool {
	return c.Protocol == q.Protocol && c.Frontend == q.To && c.Client.Addr() == q.From.Addr() &&
		(q.From.Port() == 0 || c.Client.Port() == q.From.Port())
}

// String gives the connection in one line.
func (c *Connection) String() string {
	state := ""
	if c.State != "" {
		state = ", " + c.State
	}
	return fmt.Sprintf("%s from %s to %s%s", c.Protocol, c.Client, c.Frontend, state)
}

// parseConnections reads the answer of dpctl/dump-conntrack (Open vSwitch: lib/ct-dpif.c, ct_dpif_format_entry), a line each.
// What is not TCP, UDP or SCTP is left out.
func parseConnections(text string) (list []Connection) {
	for line := range strings.Lines(text) {
		if c, ok := parseConnection(strings.TrimSpace(line)); ok {
			list = append(list, c)
		}
	}
	return list
}

func parseConnection(line string) (c Connection, ok bool) {
	proto, rest, _ := strings.Cut(line, ",")
	c.Protocol = k8s.Protocol(strings.ToUpper(proto))
	if p, err := trace.ParseProtocol(proto); err != nil || p != c.Protocol {
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
	fields := map[string]string{}
	for word := range strings.SplitSeq(rest, ",") {
		if k, v, ok := strings.Cut(word, "="); ok {
			fields[k] = v
		}
	}
	zone, _ := strconv.ParseUint(fields["zone"], 10, 16)
	mark, _ := strconv.ParseUint(fields["mark"], 0, 32)
	c.Zone, c.Mark = uint16(zone), uint32(mark)
	if info, _, ok := parenthesis(rest, "protoinfo=("); ok {
		c.State = strings.TrimPrefix(info, "state=")
	}
	return c, true
}

// parenthesis gives what stands between a beginning and the next closing parenthesis.
func parenthesis(s, begin string) (inside, rest string, ok bool) {
	_, after, ok := strings.Cut(s, begin)
	if !ok {
		return "", s, false
	}
	return strings.Cut(after, ")")
}

// tuple reads src=…,dst=…,sport=…,dport=….
func tuple(s string) (src, dst netip.AddrPort) {
	v := map[string]string{}
	for word := range strings.SplitSeq(s, ",") {
		k, value, _ := strings.Cut(word, "=")
		v[k] = value
	}
	at := func(ip, port string) netip.AddrPort {
		a, err := netip.ParseAddr(v[ip])
		p, _ := strconv.ParseUint(v[port], 10, 16)
		if err != nil {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(a.Unmap(), uint16(p))
	}
	return at("src", "sport"), at("dst", "dport")
}

// noteMasquerade fills in as whom the endpoints see clients: their translated connections go on, from the same client, in a
// zone of its own.
func noteMasquerade(list, masqueraded []Connection) {
	for i := range list {
		for j := range masqueraded {
			if m := &masqueraded[j]; m.Protocol == list[i].Protocol && m.Client == list[i].Client && m.Frontend == list[i].Endpoint {
				list[i].Seen = m.Seen
			}
		}
	}
}

// maxConnections bounds how many connections are named one by one.
const maxConnections = 5

// answer says of a connection that came to nothing what the endpoint did; "" of any other. The states are Open vSwitch's
// (lib/ct-dpif.h, CT_DPIF_TCP_STATES). Its userspace datapath has TIME_WAIT for a reset connection, too.
func (c *Connection) answer() string {
	switch c.State {
	case "SYN_SENT":
		return "; the endpoint has not answered it"
	case "CLOSED":
		return "; it was reset"
	}
	return ""
}

// noteConnections says of the connections that exist already where they go.
func noteConnections(l *trace.Live, q trace.Question, r *trace.Result, list []Connection) {
	n := 0
	for i := range list {
		c := &list[i]
		if !c.of(q) {
			continue
		}
		if n++; n > maxConnections {
			continue
		}
		seen := ""
		if c.Seen.IsValid() && c.Seen != c.Client.Addr() {
			seen = fmt.Sprintf(", masqueraded as %s", c.Seen)
		}
		still := ""
		if r.Verdict == trace.Deliver && !contains(r.Endpoints, c.Endpoint) && c.Endpoint != c.Frontend {
			still = "; it stays there although new connections do not go there any more"
		}
		still += c.answer()
		if c.Endpoint == c.Frontend {
			l.Step("an existing connection (%s): not translated, since it was opened%s", c, seen)
			continue
		}
		l.Step("an existing connection (%s): goes to %s since it was opened%s%s", c, c.Endpoint, seen, still)
	}
	if n > maxConnections {
		l.Step("and %d more existing connections", n-maxConnections)
	}
}

func contains(endpoints []string, at netip.AddrPort) bool {
	for _, e := range endpoints {
		if e == at.String() {
			return true
		}
	}
	return false
}
