package reconcile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// describeChange returns what is different, in few words.
func describeChange(have, want *hns.LoadBalancer) string {
	var parts []string
	var more, fewer int
	for _, id := range want.HostComputeEndpoints {
		if !have.References(id) {
			more++
		}
	}
	for _, id := range have.HostComputeEndpoints {
		if !want.References(id) {
			fewer++
		}
	}

	if more > 0 || fewer > 0 {
		parts = append(parts, fmt.Sprintf("endpoints +%d -%d", more, fewer))
	}
	if have.SourceVIP != want.SourceVIP {
		parts = append(parts, fmt.Sprintf("source VIP %q, not %q", want.SourceVIP, have.SourceVIP))
	}
	if have.Flags != want.Flags {
		parts = append(parts, fmt.Sprintf("flags %d, not %d", want.Flags, have.Flags))
	}
	if !slices.Equal(have.PortMappings, want.PortMappings) {
		parts = append(parts, "port mapping")
	}
	return strings.Join(parts, ", ")
}

func describeEndpoint(have, want *hns.Endpoint) string {
	if h, w := have.Provider(), want.Provider(); h != w {
		return fmt.Sprintf("it is tunnelled to %s, but belongs to %s", h, w)
	}
	if !hns.SameMAC(have.MacAddress, want.MacAddress) {
		return fmt.Sprintf("its MAC address is %s, not %s", have.MacAddress, want.MacAddress)
	}
	return "it differs"
}
