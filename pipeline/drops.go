package pipeline

import (
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// DropCookies returns how many of the wanted flows drop or refuse packets, by cookie. It must not be changed,
// nor used after the next change of the Compiler.
func (c *Compiler) DropCookies() map[uint64]int { return c.drops }

// countDrop counts a flow that was added, or removed (-1), if it drops or refuses packets.
func (c *Compiler) countDrop(f *flow.Flow, by int) {
	if f.Cookie&cookieDrops == 0 {
		return
	}
	if c.drops[f.Cookie] += by; c.drops[f.Cookie] == 0 {
		delete(c.drops, f.Cookie)
	}
}

// Unserved returns the table and the cookie, to be matched in all bits, of the flows that refuse unserved
// ports of ClusterIPs.
func (l Layout) Unserved() (table uint8, cookie uint64) {
	return l.table(tableServices), l.cookie(cookieStatic, cookieUnserved)
}

// DropReason returns why a flow with one of DropCookies drops or refuses packets, by its table and
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
