package k8s

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// claimKey identifies what only one frontend can own: an address, and a port with its protocol. The family's
// unspecified address stands for every address of the node.
type claimKey struct {
	addr netip.Addr
	port claimPort
}

// claimPort is a port number and, in the low bits, a protocol. It is small, because claims are kept of every
// frontend.
type claimPort uint32

func claimPortOf(port uint16, protocol Protocol) claimPort {
	return claimPort(port)<<2 | claimPort(slices.Index(
		[]Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}, protocol))&3
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

// claims are the claims for each address and 256 ports, sorted by port and then by compare: the first one for
// a port wins. All NodePorts may have one address, and a list must be short to be changed.
type claims map[claimPage][]portClaim

type claimPage struct {
	addr netip.Addr
	page uint8
}

func (k claimKey) page() claimPage { return claimPage{k.addr, uint8(k.port >> 10)} }

type portClaim struct {
	port claimPort
	*claim
}

func (c portClaim) compare(o portClaim) int {
	if c.port != o.port {
		return cmp.Compare(c.port, o.port)
	}
	return c.claim.compare(o.claim)
}

func keyOf(name PortName, f *Frontend) claimKey {
	addr := f.Address
	if !addr.IsValid() {
		addr = name.Family.Unspecified()
	}
	return claimKey{addr, claimPortOf(f.Port, name.Protocol)}
}

// span returns where the claims for a key begin and end in the list of its address.
func (c claims) span(key claimKey) (list []portClaim, from, to int) {
	list = c[key.page()]
	from, _ = slices.BinarySearchFunc(list, key.port, func(o portClaim, port claimPort) int {
		return cmp.Compare(o.port, port)
	})
	for to = from; to < len(list) && list[to].port == key.port; {
		to++
	}
	return list, from, to
}

// of returns the claims for a key, the winner first.
func (c claims) of(key claimKey) []portClaim {
	list, from, to := c.span(key)
	return list[from:to:to]
}

// insert adds a claim. It reports whether there are others for the key.
func (c claims) insert(key claimKey, by *claim) (others bool) {
	list, mine := c[key.page()], portClaim{key.port, by}
	at, _ := slices.BinarySearchFunc(list, mine, portClaim.compare)
	others = at > 0 && list[at-1].port == key.port || at < len(list) && list[at].port == key.port
	c[key.page()] = slices.Insert(list, at, mine)
	return others
}

// drop removes the claim of a type of a Service port. It reports whether there are others for the key.
func (c claims) drop(key claimKey, name PortName, typ FrontendType) (others bool) {
	list, from, to := c.span(key)
	for i := from; i < to; i++ {
		if list[i].name != name || list[i].typ != typ {
			continue
		}
		if list = slices.Delete(list, i, i+1); len(list) == 0 {
			delete(c, key.page())
		} else {
			c[key.page()] = list
		}
		return to-from > 1
	}
	return to > from
}

// add adds the claims of a Service's frontends. It adds to touched every key that another frontend claims
// too.
func (c claims) add(ports []portDef, created time.Time, touched map[claimKey]struct{}) {
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
func (c claims) remove(ports []portDef, touched map[claimKey]struct{}) {
	for i := range slices.Backward(ports) { // the last of a list goes at once
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
func (c claims) winner(name PortName, created time.Time, f *Frontend) (by *claim, why string) {
	list := c.of(keyOf(name, f))
	if len(list) < 2 || list[0].name == name && list[0].typ == f.Type {
		return nil, ""
	}
	by = list[0].claim
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
