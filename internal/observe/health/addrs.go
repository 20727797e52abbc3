package health

import (
	"cmp"
	"net/netip"

	"github.com/nkp-proxy/nkp/k8s"
)

// listenAddrs returns the addresses to listen on in one family: the unspecified one, unless NodePorts are
// restricted. None: no address of the node is inside the restriction.
func listenAddrs(f k8s.Family, node *k8s.Node, opts *ServicesOptions) []netip.Addr {
	if addrs, restricted := node.NodePortAddrs(f, opts.NodePortPrimary, opts.NodePortAddresses); restricted {
		return addrs
	}
	return []netip.Addr{f.Unspecified()}
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
	return cmp.Or(cmp.Compare(k.name.Namespace, o.name.Namespace),
		cmp.Compare(k.name.Name, o.name.Name), k.at.Compare(o.at))
}
