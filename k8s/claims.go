package k8s

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// claimKey is what only one frontend can have: an address (for every address of the node: the unspecified
// one of the family), a port and a protocol.
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

// rank orders the types of frontends; it comes before the ages of their Services. The API server gives a cluster IP to one Service;
// external IPs are what a Service's author writes (CVE-2020-8554). A NodePort names no address: kube-proxy looks at NodePorts
// after everything else, also where --nodeport-addresses restricts them.
func (c claim) rank() int {
	switch c.typ {
	case ClusterIP:
		return 0
	case NodePort:
		return 2
	}
	return 1
}

// compare sorts first the claim that gets the address: the first by rank, then the older Service, then the first by name; among
// the frontends of one Service port the first by type.
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.rank(), o.rank()), c.created.Compare(o.created), c.name.Compare(o.name), cmp.Compare(c.typ, o.typ))
}

// claims holds who wants what; the first of each list has it.
type claims map[claimKey][]claim

func keyOf(name PortName, f *Frontend) claimKey {
	addr := f.Address
	if !addr.IsValid() {
		addr = wildcard(name.Family)
	}
	return claimKey{addr, f.Port, name.Protocol}
}

// add enters the frontends of a Service, and into touched every key that another one wants too.
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

// remove takes back what add entered, and enters into touched every key that another one wants too.
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

// winner returns the Service port that a frontend has to leave its address to and why; ok is false if it is in force itself.
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

// conflictText returns in a warning that a frontend is shadowed.
func conflictText(name PortName, f *Frontend, by claim, why string) string {
	what := fmt.Sprintf("node port %d", f.Port)
	if f.Address.IsValid() {
		what = netip.AddrPortFrom(f.Address, f.Port).String()
	}
	return fmt.Sprintf("%s/%s belongs to Service %s, %s: this frontend is not served", what, name.Protocol, by.name, why)
}
