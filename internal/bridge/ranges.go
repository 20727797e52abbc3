package bridge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
)

// outsideRanges returns a warning for each family in which the ranges that identify pods by their address
// hold no pod of the bridge or, if no pod's address is known, not the Node's podCIDRs. A single pod outside
// is no warning: it may be something else, such as a virtual machine.
func outsideRanges(cfg *pipeline.Config, bridge string, podCIDRs []netip.Prefix) (warnings []string) {
	for _, family := range dataplane.Families {
		of := func(list []netip.Prefix) (out []netip.Prefix) {
			for _, p := range list {
				if k8s.FamilyOf(p.Addr()) == family {
					out = append(out, p)
				}
			}
			return out
		}

		ranges, own := of(cfg.Detector.CIDRs), of(podCIDRs)
		within := func(ip netip.Addr) bool {
			return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) })
		}

		var pods []netip.Addr
		for _, p := range cfg.Pods {
			if k8s.FamilyOf(p.IP) == family {
				pods = append(pods, p.IP)
			}
		}

		flag, outside := "--cluster-cidr", ""
		if slices.Equal(ranges, own) {
			flag = "the Node's spec.podCIDRs (--detect-local-mode NodeCIDR)"
		}
		ownWithin := slices.ContainsFunc(own, func(o netip.Prefix) bool {
			return slices.ContainsFunc(ranges, o.Overlaps)
		})

		switch {
		case len(ranges) == 0 || slices.ContainsFunc(pods, within) || len(pods) == 1 && ownWithin:
		case len(pods) > 0:
			outside = fmt.Sprintf("%d of %d %s pod addresses on bridge %s, such as %s,",
				len(pods), len(pods), family, bridge, pods[0])
			if len(own) > 0 {
				outside = strings.TrimSuffix(outside, ",") +
					fmt.Sprintf(" (the Node's spec.podCIDRs: %s),", prefixes(own))
			}
		case len(own) > 0 && !ownWithin:
			outside = "the Node's spec.podCIDRs " + prefixes(own)
		}

		if outside != "" {
			warnings = append(warnings, fmt.Sprintf(
				"%s lie outside %s %s: pods count as clients from outside, "+
					"and their connections to Services are masqueraded; correct it",
				outside, flag, prefixes(ranges)))
		}
	}
	return warnings
}

func prefixes(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}
