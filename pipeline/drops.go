package pipeline

import "github.com/nkp-proxy/nkp/k8s"

// Drops returns the cookie and mask that select the flows which drop or refuse packets.
func (l Layout) Drops() (cookie, mask uint64) {
	cookie, mask = l.StaticCookies()
	return cookie | cookieDrops, mask | cookieDrops
}

// DropTables are the tables of the flows that Drops selects.
func (l Layout) DropTables() []uint8 {
	return []uint8{l.table(tableServices), l.table(tableRanges), l.table(tableDeliver)}
}

// Unserved returns the table and the cookie, to be matched in all bits, of the flows that refuse unserved
// ports of ClusterIPs.
func (l Layout) Unserved() (table uint8, cookie uint64) {
	return l.table(tableServices), l.cookie(cookieStatic, cookieUnserved)
}

// DropReason returns why a flow that Layout.Drops selects drops or refuses packets, by its table and
// priority; "" if it is of another version.
func (l Layout) DropReason(table uint8, priority uint16) k8s.DropReason {
	switch table - l.TableBase {
	case tableServices:
		switch priority {
		case prioFrontendSource + refuses, prioFrontend + refuses,
			prioNodePortSource + refuses, prioNodePort + refuses:
			return k8s.DropNoEndpoint
		case prioFrontendSource + drops, prioFrontend + drops,
			prioNodePortSource + drops, prioNodePort + drops:
			return k8s.DropNoLocalEndpoint
		case prioFrontendReset, prioNodePortReset:
			return k8s.DropRemovedEndpoint
		case prioUnallocated:
			return k8s.DropUnallocated
		case prioHairpinIP:
			return k8s.DropHairpin
		case prioInvalid:
			return k8s.DropInvalid
		}

	case tableRanges:
		if priority == prioRangeReset {
			return k8s.DropRemovedEndpoint
		}
		return k8s.DropSourceRange
	case tableDeliver:
		if priority == prioUnchanged {
			return k8s.DropInvalid
		}
		return k8s.DropNoPort
	}
	return ""
}
