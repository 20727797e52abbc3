package k8s

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// claimKey identifies what only one frontend can own: an address, a port and a protocol. The family's
// unspecified address stands for every address of the node.
type claimKey struct {
	addr     netip.Addr
	port     uint16
	protocol Protocol
}

// claim is one frontend that wants a claimKey.
type claim struct {
	created time.Time
	name    PortName
	typ     FrontendType
}

// rank returns the precedence of the frontend's type, which outweighs the ages of the Services. The API
// server assigns a cluster IP to one Service only, but a Service's author chooses its external IPs
// (CVE-2020-8554). A NodePort names no address: kube-proxy matches NodePorts after everything else, even
// where --nodeport-addresses restricts them.
func (c claim) rank() int {
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
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.rank(), o.rank()), c.created.Compare(o.created), c.name.Compare(o.name),
		cmp.Compare(c.typ, o.typ))
}

// claims maps each key to the claims for it, sorted by compare: the first one wins.
type claims map[claimKey][]claim

func keyOf(name PortName, f *Frontend) claimKey {
	addr := f.Address
	if !addr.IsValid() {
		addr = name.Family.Unspecified()
	}
	return claimKey{addr, f.Port, name.Protocol}
}

// add adds the claims of a Service's frontends. It adds to touched every key that another frontend claims
// too.
func (c claims) add(ports []portDef, created time.Time, touched map[claimKey]struct{}) {
	for i := range ports {
		p := &ports[i]
		for j := range p.frontends {
			key, mine := keyOf(p.name, &p.frontends[j].Frontend), claim{created, p.name, p.frontends[j].Type}
			list := c[key]
			if len(list) > 0 {
				touched[key] = struct{}{}
			}
			at, _ := slices.BinarySearchFunc(list, mine, claim.compare)
			c[key] = slices.Insert(list, at, mine)
		}
	}
}

// remove removes the claims that add added. It adds to touched every key that another frontend claims too.
func (c claims) remove(ports []portDef, touched map[claimKey]struct{}) {
	for i := range ports {
		p := &ports[i]
		for j := range p.frontends {
			key, typ := keyOf(p.name, &p.frontends[j].Frontend), p.frontends[j].Type
			list := slices.DeleteFunc(c[key], func(o claim) bool { return o.name == p.name && o.typ == typ })
			if len(list) == 0 {
				delete(c, key)
			} else {
				c[key] = list
				touched[key] = struct{}{}
			}
		}
	}
}

// winner returns the claim that shadows a frontend, and why; ok is false if the frontend itself is in force.
func (c claims) winner(name PortName, created time.Time, f *Frontend) (by claim, why string, ok bool) {
	list := c[keyOf(name, f)]
	if len(list) < 2 || list[0].name == name && list[0].typ == f.Type {
		return by, "", false
	}
	by = list[0]
	switch {
	case by.name == name:
		why = fmt.Sprintf("which serves it as %s", by.typ)
	case by.rank() < (claim{typ: f.Type}).rank() && by.typ == ClusterIP:
		why = "whose cluster IP it is"
	case by.rank() < (claim{typ: f.Type}).rank():
		why = fmt.Sprintf("which names the address (%s)", by.typ)
	case by.created.Before(created):
		why = "which is older"
	default:
		why = "which comes first by name"
	}
	return by, why, true
}

// conflictText returns the text of the warning that a frontend is shadowed.
func conflictText(name PortName, f *Frontend, by claim, why string) string {
	what := fmt.Sprintf("node port %d", f.Port)
	if f.Address.IsValid() {
		what = netip.AddrPortFrom(f.Address, f.Port).String()
	}
	return fmt.Sprintf("%s/%s belongs to Service %s, %s: this frontend is not served",
		what, name.Protocol, by.name, why)
}
