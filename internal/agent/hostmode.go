package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/bridge"
)

// hostModeLimit is how long HostMode looks for what speaks against nftables.
const hostModeLimit = 5 * time.Second

// HostMode returns which data plane serves the node's own traffic beside a bridge, for a scope. It is the one that --host-traffic names,
// else nftables, or iptables, and why says what speaks against nftables. If it is "", none serves, for the reason in why.
//
// Without --host-traffic, rules of another Service proxy keep nkp from starting to serve here, not from going on: last returns the data
// planes of the last run. It is called after the check for rules, because an agent that starts in between records its data planes before
// it writes a rule. With --service-proxy-name another proxy is expected, and nftables serves beside it.
func (s *Settings) HostMode(ctx context.Context, scope serving.Scope, last func() []Mode) (m Mode, why string) {
	lacking := iptables.Available(s.IPTablesBackend)
	switch {
	case s.HostTraffic == bridge.HostNFTables:
		return ModeNFTables, ""
	case s.HostTraffic == bridge.HostIPTables && lacking == nil:
		return ModeIPTables, ""
	case s.HostTraffic == bridge.HostIPTables:
		return "", lacking.Error()
	}
	if s.ServiceProxyName == "" {
		others := otherProxy(ctx, lacking == nil)
		served := slices.ContainsFunc(last(), func(m Mode) bool { return m == ModeIPTables || m == ModeNFTables })
		if others != "" && !served {
			return "", others
		}
	}
	ctx, cancel := context.WithTimeout(ctx, hostModeLimit)
	defer cancel()
	switch why = s.WhyNotNFTables(ctx, scope); {
	case why == "":
		return ModeNFTables, ""
	case s.ServiceProxyName != "":
		return "", "with --service-proxy-name another Service proxy is expected on this node, and iptables mode uses the same chain names " +
			"(--host-traffic iptables makes nkp take them over); not nftables: " + why
	case lacking != nil:
		return "", lacking.Error() + "; not nftables: " + why
	}
	return ModeIPTables, why
}

// otherProxy returns what another Service proxy has installed, or that this cannot be found out; "": nothing. available: there are programs
// of iptables.
func otherProxy(ctx context.Context, available bool) string {
	if available {
		switch occupied, err := iptables.Occupied(ctx); {
		case err != nil:
			return "cannot check iptables for existing Service chains: " + err.Error()
		case occupied:
			return "iptables already has Service chains that nkp did not create (probably kube-proxy's); --host-traffic nftables or iptables makes nkp take them over"
		}
	}
	if has, err := nftables.HasKubeProxyTables(); err == nil && has { // an error: there is no nf_tables
		return "nftables has kube-proxy's tables; --host-traffic nftables or iptables makes nkp take them over"
	}
	return ""
}
