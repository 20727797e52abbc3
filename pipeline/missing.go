package pipeline

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Missing returns one line for each feature that is limited or left out, with the reason. It is asked for
// after every change, so that it takes no time for Services without limits.
func (c *Compiler) Missing() []string {
	var out []string
	if len(c.cfg.NodeIPs) == 0 {
		out = append(out,
			"the node's addresses are unknown (--node-ip, or a Node object): "+
				"no NodePorts, no masquerade, no hairpin")
	}
	if c.cfg.Uplink == 0 {
		out = append(out,
			"the uplink port is unknown (--uplink-port): "+
				"a client that uses one source port both to a Service and directly to its endpoint "+
				"can see that connection stall")
	}
	if !c.cfg.NodeMAC.IsZero() && c.cfg.GatewayMAC.IsZero() && !c.cfg.NoRouter {
		out = append(out,
			"the gateway's MAC is unknown (--gateway-mac): "+
				"traffic to NodePorts and LoadBalancer addresses is not routed back out")
	}
	for _, lines := range c.limits {
		out = append(out, lines...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// noteLimits records the limits of a Service port that was added, or that was compiled again.
func (c *Compiler) noteLimits(sp *k8s.ServicePort) {
	if lines := c.cfg.limitsOf(sp); lines != nil {
		c.limits[sp.Name] = lines
	} else {
		delete(c.limits, sp.Name)
	}
}

// limitsOf returns the lines of Missing for a Service port. They depend on nothing else of the Config than
// what sameForServices compares.
func (c *Config) limitsOf(sp *k8s.ServicePort) (lines []string) {
	if sp.AffinitySeconds > 0 {
		if n := max(len(sp.ClusterEndpoints), len(sp.LocalEndpoints)); n > MaxAffinityEndpoints {
			lines = append(lines,
				fmt.Sprintf("Service %s: %d endpoints with session affinity; the first %d are used",
					sp.Name, n, MaxAffinityEndpoints))
		}
		if sp.AffinitySeconds > MaxAffinitySeconds {
			lines = append(lines, fmt.Sprintf(
				"Service %s: the session affinity timeout of %d s is reduced to %d s, "+
					"the maximum of an OpenFlow idle timeout",
				sp.Name, sp.AffinitySeconds, MaxAffinitySeconds))
		}
	}
	lines = append(lines, c.untranslated(sp)...)
	return append(lines, c.notRelayed(sp)...)
}
