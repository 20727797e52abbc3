package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// List writes a list without order for comparison and for people.
func List(texts []string) string {
	return "[" + strings.Join(slices.Sorted(slices.Values(texts)), " ") + "]"
}

// Set writes a list in which nothing counts twice.
func Set(texts []string) string {
	return List(slices.Compact(slices.Sorted(slices.Values(texts))))
}

// FrontendText names a frontend of a Service port; address "" is every address of the node.
func FrontendText(typ k8s.FrontendType, address string, port int) string {
	return fmt.Sprintf("%s %s", typ, at(address, port))
}

// ClaimText names what only one frontend can have.
func ClaimText(name k8s.PortName, address string, port int) string {
	return fmt.Sprintf("%s %s %s", at(address, port), name.Protocol, name.Family)
}

// OwnerText names who has a claim.
func OwnerText(name k8s.PortName, typ k8s.FrontendType) string { return name.ID() + "=" + string(typ) }

func at(address string, port int) string {
	if address == "" {
		return fmt.Sprintf("*:%d", port)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String()
}

// EndpointText writes an endpoint, marked if it is on this node.
func EndpointText(at string, local bool) string {
	if local {
		return at + "(here)"
	}
	return at
}
