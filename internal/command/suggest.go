package command

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// enums lists the values of the flags that take one of a few, for messages and shell completion.
var enums = map[string][]string{
	"detect-local-mode": {string(k8s.DetectByClusterCIDR), string(k8s.DetectByNodeCIDR),
		string(k8s.DetectByBridge), string(k8s.DetectByInterfacePrefix)},
	"host-traffic": {string(bridge.HostAuto), string(bridge.HostOVS),
		string(bridge.HostIPTables), string(bridge.HostNFTables), string(bridge.HostOff)},
	"iptables-backend":  {"nf_tables", "legacy"},
	"local-delivery":    {string(bridge.DeliverAuto), string(bridge.DeliverOn), string(bridge.DeliverOff)},
	"log-level":         {"debug", "info", "warn", "error"},
	"logging-format":    {"text", "json"},
	"mode":              {"auto", "ovs", "iptables", "nftables", "windows"},
	"port-reuse-guards": {string(bridge.GuardsAuto), "true", "false"},
	"protocol":          {"tcp", "udp", "sctp"},
}

// checkEnum returns a usage error if value is not one of the values of a flag in enums.
func checkEnum(flag, value string) error { return oneOf("--"+flag, value, enums[flag]) }

// oneOf returns a usage error that lists the allowed values if value is not among them.
func oneOf(flag, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	last := len(allowed) - 1
	return usageError("%s %q is not %s or %s%s", flag, value,
		strings.Join(allowed[:last], ", "), allowed[last], trace.DidYouMean(value, allowed))
}

// suggestFlag returns a hint for an error about an unknown flag of a command; "" for other errors.
func suggestFlag(f *pflag.FlagSet, err *pflag.NotExistError) string {
	var known []string
	f.VisitAll(func(flag *pflag.Flag) {
		// A flag of one or two letters is part of too many names.
		if !flag.Hidden && len(flag.Name) > 2 {
			known = append(known, "--"+flag.Name)
		}
	})
	return trace.DidYouMean("--"+err.GetSpecifiedName(), known)
}
