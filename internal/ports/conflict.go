package ports

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Listener is a socket that takes connections (TCP, SCTP) or datagrams from anyone (UDP).
type Listener struct {
	Protocol k8s.Protocol
	// Addr is the address it is bound to; an unspecified one means every address of that family.
	Addr netip.AddrPort
	// Both is set for an unspecified IPv6 address that takes IPv4 as well.
	Both bool
	// Inode is the socket's number in /proc/PID/fd; 0: unknown.
	Inode uint32
}

// Process is the process that holds a socket. The zero Process is unknown: it may run in another PID
// namespace.
type Process struct {
	PID  int
	Name string // at most 15 bytes (comm)
}

// String returns "nginx (pid 123)".
func (p Process) String() string {
	if p.PID == 0 {
		return "a process that cannot be seen from here"
	}
	return fmt.Sprintf("%s (pid %d)", p.Name, p.PID)
}

// Conflict is a frontend of a Service and a listener that it hides.
type Conflict struct {
	Service  k8s.PortName // of one family where a NodePort of both is hidden
	Type     k8s.FrontendType
	Address  netip.Addr // the zero Addr: every address of the node (NodePort)
	Port     uint16
	Listener Listener
	Process  Process
}

// String returns all of it in one line, fit for an Event: "NodePort 30784/TCP of default/guestbook is also
// listened on by nginx (pid 123) at 0.0.0.0:30784: clients reach the Service, not the process".
func (c Conflict) String() string {
	return fmt.Sprintf("%s of %s is also listened on by %s at %s: clients reach the Service, not the process",
		c.frontend(), c.Service, c.Process, c.Listener.Addr)
}

func (c Conflict) frontend() string {
	if !c.Address.IsValid() {
		return fmt.Sprintf("%s %d/%s", c.Type, c.Port, c.Service.Protocol)
	}
	return fmt.Sprintf("%s %s/%s", c.Type, netip.AddrPortFrom(c.Address, c.Port), c.Service.Protocol)
}

// key identifies a conflict for reports: conflicts that differ only in family, process or socket at the same
// address are one.
type key struct {
	service  k8s.ServiceName
	port     string
	typ      k8s.FrontendType
	protocol k8s.Protocol
	at       netip.AddrPort
	listener netip.AddrPort
}

func (c *Conflict) key() key {
	return key{
		c.Service.ServiceName, c.Service.Port, c.Type, c.Service.Protocol,
		netip.AddrPortFrom(c.Address, c.Port), c.Listener.Addr,
	}
}

func (c Conflict) compare(o Conflict) int {
	return cmp.Or(c.Service.Compare(o.Service), cmp.Compare(c.Type, o.Type), c.Address.Compare(o.Address),
		cmp.Compare(c.Port, o.Port),
		c.Listener.Addr.Compare(o.Listener.Addr))
}

// matcher collects conflicts Service port by Service port.
type matcher struct {
	at    map[socket][]Listener
	own   map[netip.Addr]bool // the node's addresses
	found map[key]Conflict
}

type socket struct {
	protocol k8s.Protocol
	port     uint16
}

func newMatcher(listeners []Listener, node k8s.Node) *matcher {
	m := &matcher{at: map[socket][]Listener{}, own: map[netip.Addr]bool{}, found: map[key]Conflict{}}
	for _, l := range listeners {
		if !l.Addr.Addr().IsLoopback() {
			s := socket{l.Protocol, l.Addr.Port()}
			m.at[s] = append(m.at[s], l)
		}
	}
	for _, a := range slices.Concat(node.IPs, node.Local) {
		m.own[a] = true
	}
	return m
}

func (m *matcher) match(p *k8s.ServicePort) {
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if !claims(f) {
			continue
		}
		for _, l := range m.at[socket{p.Name.Protocol, f.Port}] {
			if !m.hides(p.Name.Family, f.Address, l) {
				continue
			}
			c := Conflict{Service: p.Name, Type: f.Type, Address: f.Address, Port: f.Port, Listener: l}
			if old, ok := m.found[c.key()]; !ok || c.Service.Compare(old.Service) < 0 {
				m.found[c.key()] = c
			}
		}
	}
}

// claims reports whether a frontend may be at an address of the node.
func claims(f *k8s.Frontend) bool { return f.Type != k8s.ClusterIP && f.ShadowedBy == "" }

// hides reports whether traffic to a frontend's address would reach the listener without the Service.
func (m *matcher) hides(family k8s.Family, frontend netip.Addr, l Listener) bool {
	bound := l.Addr.Addr()
	if !bound.IsUnspecified() {
		return k8s.FamilyOf(bound) == family && (!frontend.IsValid() || frontend == bound)
	}
	if k8s.FamilyOf(bound) != family && !l.Both {
		return false
	}
	return !frontend.IsValid() || m.own[frontend]
}

func (m *matcher) sorted() []Conflict {
	return slices.SortedFunc(maps.Values(m.found), Conflict.compare)
}
