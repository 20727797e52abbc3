package health

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// listenAddrs returns the addresses to listen on in one family: the wildcard, unless NodePorts are restricted. None: no
// address of the node is inside the restriction.
func listenAddrs(f k8s.Family, node *k8s.Node, opts *ServicesOptions) (addrs []netip.Addr) {
	if opts.NodePortPrimary {
		if i := slices.IndexFunc(node.IPs, func(a netip.Addr) bool { return k8s.FamilyOf(a) == f }); i >= 0 {
			addrs = node.IPs[i : i+1]
		}
		return addrs
	}
	restricted := false
	for _, p := range opts.NodePortAddresses {
		if k8s.FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return wildcard(f)
		}
		restricted = true
		for _, a := range node.Local {
			if p.Contains(a) && !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	if !restricted {
		return wildcard(f)
	}
	return addrs
}

func wildcard(f k8s.Family) []netip.Addr {
	if f == k8s.IPv6 {
		return []netip.Addr{netip.IPv6Unspecified()}
	}
	return []netip.Addr{netip.IPv4Unspecified()}
}

// listenKey is one port that is listened on for one Service.
type listenKey struct {
	name k8s.ServiceName
	at   netip.AddrPort
}

func (k listenKey) String() string {
	return "health check of Service " + k.name.String() + " at " + k.at.String()
}

func (k listenKey) compare(o listenKey) int {
	return cmp.Or(cmp.Compare(k.name.Namespace, o.name.Namespace), cmp.Compare(k.name.Name, o.name.Name), k.at.Compare(o.at))
}
