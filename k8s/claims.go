package k8s

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// claimKey identifies what only one frontend can own: an address, a port and a protocol. The family's
// unspecified address stands for every address of the node.
type claimKey struct {
	addr     netip.Addr
	port     uint16
	protocol protocolID
}

// protocolID is a Protocol in one byte, because claims are kept of every frontend.
type protocolID uint8

func idOf(p Protocol) protocolID {
	return protocolID(slices.Index([]Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}, p))
}

// claim is one frontend that wants a claimKey. The frontends of a type of one Service port share it.
type claim struct {
	created time.Time
	name    PortName
	typ     FrontendType
}

// rank returns the precedence of the frontend's type, which outweighs the ages of the Services. The API
// server assigns a cluster IP to one Service only, but a Service's author chooses its external IPs
// (CVE-2020-8554). A NodePort names no address: kube-proxy matches NodePorts after everything else, even
// where --nodeport-addresses restricts them.
func (c *claim) rank() int {
	switch c.typ {
	case ClusterIP:
		return 0
	case NodePort:
		return 2
	}
	return 1
}

// compare orders claims, the winner first: by rank, then the older Service, then by name. Claims of the same
// Service port are ordered by type.
func (c *claim) compare(o *claim) int {
	return cmp.Or(cmp.Compare(c.rank(), o.rank()), c.created.Compare(o.created), c.name.Compare(o.name),
		cmp.Compare(c.typ, o.typ))
}

// claims are the claims for each key. Nearly all keys have one.
type claims struct {
	only    map[claimKey]*claim
	several map[claimKey][]*claim // two or more, sorted by compare: the first one wins
}

func newClaims() claims {
	return claims{map[claimKey]*claim{}, map[claimKey][]*claim{}}
}

func keyOf(name PortName, f *Frontend) claimKey {
	addr := f.Address
	if !addr.IsValid() {
		addr = name.Family.Unspecified()
	}
	return claimKey{addr, f.Port, idOf(name.Protocol)}
}

// of returns the claims for a key, the winner first.
func (c *claims) of(key claimKey) []*claim {
	if only, ok := c.only[key]; ok {
		return []*claim{only}
	}
	return c.several[key]
}

func (c *claims) set(key claimKey, list []*claim) {
	delete(c.only, key)
	delete(c.several, key)
	switch len(list) {
	case 0:
	case 1:
		c.only[key] = list[0]
	default:
		c.several[key] = list
	}
}

// insert adds a claim. It reports whether there are others for the key.
func (c *claims) insert(key claimKey, mine *claim) (others bool) {
	list := c.of(key)
	if len(list) == 0 {
		c.only[key] = mine
		return false
	}
	at, _ := slices.BinarySearchFunc(list, mine, (*claim).compare)
	c.set(key, slices.Insert(list, at, mine))
	return true
}

// drop removes the claim of a type of a Service port. It reports whether there are others for the key.
func (c *claims) drop(key claimKey, name PortName, typ FrontendType) (others bool) {
	list := slices.DeleteFunc(c.of(key), func(o *claim) bool { return o.name == name && o.typ == typ })
	c.set(key, list)
	return len(list) > 0
}

// add adds the claims of a Service's frontends. It adds to touched every key that another frontend claims
// too.
func (c *claims) add(ports []portDef, created time.Time, touched map[claimKey]struct{}) {
	for i := range ports {
		p := &ports[i]
		var mine *claim
		for j := range p.frontends {
			f := &p.frontends[j]
			if mine == nil || mine.typ != f.Type { // they are sorted by type
				mine = &claim{created, p.name, f.Type}
			}
			if key := keyOf(p.name, f); c.insert(key, mine) {
				touched[key] = struct{}{}
			}
		}
	}
}

// remove removes the claims that add added. It adds to touched every key that another frontend claims too.
func (c *claims) remove(ports []portDef, touched map[claimKey]struct{}) {
	for i := range ports {
		p := &ports[i]
		for j := range p.frontends {
			f := &p.frontends[j]
			if key := keyOf(p.name, f); c.drop(key, p.name, f.Type) {
				touched[key] = struct{}{}
			}
		}
	}
}

// winner returns the claim that shadows a frontend, and why; nil if the frontend itself is in force.
func (c *claims) winner(name PortName, created time.Time, f *Frontend) (by *claim, why string) {
	list := c.several[keyOf(name, f)]
	if len(list) == 0 || list[0].name == name && list[0].typ == f.Type {
		return nil, ""
	}
	by = list[0]
	switch {
	case by.name == name:
		why = fmt.Sprintf("which serves it as %s", by.typ)
	case by.rank() < (&claim{typ: f.Type}).rank() && by.typ == ClusterIP:
		why = "whose cluster IP it is"
	case by.rank() < (&claim{typ: f.Type}).rank():
		why = fmt.Sprintf("which names the address (%s)", by.typ)
	case by.created.Before(created):
		why = "which is older"
	default:
		why = "which comes first by name"
	}
	return by, why
}

// conflictText returns the text of the warning that a frontend is shadowed.
func conflictText(name PortName, f *Frontend, by *claim, why string) string {
	what := fmt.Sprintf("node port %d", f.Port)
	if f.Address.IsValid() {
		what = netip.AddrPortFrom(f.Address, f.Port).String()
	}
	return fmt.Sprintf("%s/%s belongs to Service %s, %s: this frontend is not served",
		what, name.Protocol, by.name, why)
}
