package command

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/mode"
)

var (
	onBridge = []mode.Mode{mode.OVS}
	onLinux  = mode.OnLinux()
)

// modesOf returns the data planes in which a flag has an effect; nil: in all.
func modesOf(f *pflag.Flag) []mode.Mode {
	switch f.Name {
	case "affinity-limit-node", "allow-stateful-policies", "audit-period", "configure-bridge", "gateway-mac",
		"hairpin-ip", "host-traffic", "local-delivery",
		"ovs-wait", "port-reuse-guards", "ports", "reject-rate", "service-counters", "uplink-port":
		return onBridge
	// of nftables beside a bridge, too
	case "affinity-limit", "nftables-flowtable-devices", "nftables-service-counters":
		return []mode.Mode{mode.OVS, mode.NFTables}
	case "iptables-backend":
		return []mode.Mode{mode.OVS, mode.IPTables}
	case "answer-ping", "healthz-data-path":
		return onLinux
	case "iptables-min-sync-period", "iptables-sync-period":
		return nil
	case "node-mac":
		return []mode.Mode{mode.OVS, mode.Windows}
	}

	switch group := f.Annotations[groupKey]; {
	case len(group) == 0:
	case group[0] == groupSwitch, group[0] == groupLayout:
		return onBridge
	case group[0] == groupIPTables, group[0] == groupKernel:
		return onLinux
	case group[0] == groupWindows:
		return []mode.Mode{mode.Windows}
	}
	return nil
}

// withoutEffect returns the flags of the command line that have an effect in none of the data planes: nkp's
// own, and kube-proxy's.
func (c *configuration) withoutEffect(modes []mode.Mode) (own, kubeProxy []string) {
	for _, name := range slices.Sorted(maps.Keys(c.explicit)) {
		of := modesOf(c.flags.Lookup(name))
		switch {
		case of == nil ||
			slices.ContainsFunc(modes, func(m mode.Mode) bool { return slices.Contains(of, m) }):
		case ofKubeProxy(name):
			kubeProxy = append(kubeProxy, "--"+name)
		default:
			own = append(own, "--"+name)
		}
	}
	return own, kubeProxy
}

// checkMode returns an error that names flags of nkp's own without effect in the data planes. A file may be
// shared by many nodes, and a command line of kube-proxy's works as it is: their settings without effect are
// no errors.
func (c *configuration) checkMode(modes ...mode.Mode) error {
	own, _ := c.withoutEffect(modes)
	if len(own) == 0 {
		return nil
	}
	var names []string
	for _, m := range modes {
		names = append(names, string(m))
	}
	return usageError("without effect in mode %s: %s; leave out what is not for it, or choose another --mode",
		strings.Join(names, " or "), strings.Join(own, ", "))
}

// checkAgent returns an error that names flags for which a running agent, which answers by its own settings,
// has no use.
func (c *configuration) checkAgent() error {
	var unused []string
	for _, name := range slices.Sorted(maps.Keys(c.explicit)) {
		if c.flags.Lookup(name).Annotations[groupKey] != nil && name != "socket" && name != "config" {
			unused = append(unused, "--"+name)
		}
	}
	if len(unused) == 0 {
		return nil
	}
	return usageError("without effect: %s. The running agent answers by its own settings; "+
		"pass --kubeconfig or --manifests to compare with others, or leave these out",
		strings.Join(unused, ", "))
}
