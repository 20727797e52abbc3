package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// list writes a list without order for comparison and for people.
func list(texts []string) string {
	return "[" + strings.Join(slices.Sorted(slices.Values(texts)), " ") + "]"
}

// set writes a list in which nothing counts twice.
func set(texts []string) string {
	return list(slices.Compact(slices.Sorted(slices.Values(texts))))
}

// frontendText names a frontend of a Service port; address "" is every address of the node.
func frontendText(typ k8s.FrontendType, address string, port int) string {
	return fmt.Sprintf("%s %s", typ, at(address, port))
}

// claimText names what only one frontend can have.
func claimText(name k8s.PortName, address string, port int) string {
	return fmt.Sprintf("%s %s %s", at(address, port), name.Protocol, name.Family)
}

// ownerText names who has a claim.
func ownerText(name k8s.PortName, typ k8s.FrontendType) string { return name.ID() + "=" + string(typ) }

func at(address string, port int) string {
	if address == "" {
		return fmt.Sprintf("*:%d", port)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String()
}

// endpointText writes an endpoint, marked if it is on this node.
func endpointText(at string, local bool) string {
	if local {
		return at + "(here)"
	}
	return at
}
