package agent

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables"
	iprules "github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	nftrules "github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// Settings are the command-line settings, except for the source of objects.
type Settings struct {
	bridge.Settings
	k8s.Options // of the model; TrackerOptions completes them

	Socket string // the agent's own socket; "": none

	Fallback        fallback.Options // of iptables and nftables
	IPTablesBackend string           // iptables.Options.Backend
	NFTables        nftables.Settings
	Windows         windows.Options

	StuckAfter   time.Duration // how long a loop may work without progress; 0: dataplane.Bound. For tests
	HealthzAddr  string        // of /healthz and /livez; "": nowhere
	BindHardFail bool          // not to get an address to listen on is fatal
	// HealthzDataPath makes /healthz fail while canaries do not pass the data path.
	HealthzDataPath bool
	Metrics         MetricsSettings
	Conntrack       sysctl.Settings
}

// ownPortMin is where the kernel's default range for the node's own connections begins
// (net.ipv4.ip_local_port_range). Above it are neither NodePorts nor the ports with which the bridge
// masquerades (pipeline.MasqueradePortMax).
const ownPortMin = 32768

// fallbackOptions returns the options that the data planes iptables and nftables both have, for a scope.
func (s *Settings) fallbackOptions(scope serving.Scope) fallback.Options {
	o := s.Fallback
	o.Scope, o.MasqueradeAll, o.AnswerPing = scope, s.MasqueradeAll, s.AnswerPing
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	at, restricted := new(k8s.Node).NodePortAddrs(k8s.IPv4, s.NodePortPrimary, s.NodePortAddresses, loopback)
	o.LocalhostNodePorts = o.LocalhostNodePorts && (!restricted || slices.Contains(at, loopback))
	switch scope {
	case serving.Host:
		o.PodDevice = s.Bridge // pods of other nodes come in at the NIC, and are served
	case serving.Own: // the bridge masquerades as the node too
		o.MasqueradeMin, o.MasqueradeMax = ownPortMin, math.MaxUint16
	}
	return o
}

// IPTablesOptions returns the options of the data plane iptables for a scope.
func (s *Settings) IPTablesOptions(scope serving.Scope) iptables.Options {
	return iptables.Options{Options: s.fallbackOptions(scope), Backend: s.IPTablesBackend}
}

// NFTablesOptions returns the options of the data plane nftables for a scope.
func (s *Settings) NFTablesOptions(scope serving.Scope) nftables.Options {
	o := nftables.Options{Options: s.fallbackOptions(scope), Settings: s.NFTables}
	o.AffinityLimit = int(s.AffinityLimit)
	return o
}

// Choosing returns the settings by which a data plane is chosen for a scope.
func (s *Settings) Choosing(scope serving.Scope) *mode.Node {
	return &mode.Node{
		Settings:         &s.Settings,
		ServiceProxyName: s.ServiceProxyName,
		IPTables:         s.IPTablesOptions(scope),
		NFTables:         s.NFTablesOptions(scope),
	}
}

// Beside returns which data plane serves the node's own traffic beside a bridge, for a scope; see
// [mode.Facts.Beside]. last returns the data planes of the last run.
func (s *Settings) Beside(
	ctx context.Context, scope serving.Scope, last func() []mode.Mode,
) (m mode.Mode, why string) {
	return s.Choosing(scope).Facts(ctx, mode.Auto, nil, last).Beside()
}

// DiffRules returns how the rules of iptables or nftables, as mode says, differ from those that a model calls
// for; "": not at all.
func (s *Settings) DiffRules(
	ctx context.Context, by mode.Mode, scope serving.Scope, m *k8s.Model,
) (string, error) {
	if by == mode.NFTables {
		return nftables.Diff(m, s.NFTablesOptions(scope))
	}
	return iptables.Diff(ctx, m, s.IPTablesOptions(scope))
}

// WindowsOptions returns the options of the HNS data plane. kube-proxy's iptables periods apply to all its
// modes except IPVS.
func (s *Settings) WindowsOptions() windows.Options {
	o := s.Windows
	o.AuditPeriod, o.MinSync = s.Fallback.SyncPeriod, s.Fallback.MinSyncPeriod
	if !s.NodeMAC.IsZero() {
		o.HostMAC = s.NodeMAC.String()
	}
	return o
}

// TrackerOptions returns the options of the model, for a data plane.
func (s *Settings) TrackerOptions(by mode.Mode) k8s.Options {
	o := s.Options
	o.Cost = s.cost(by)
	if by != mode.OVS {
		o.NotConsistent = "only nodes with an Open vSwitch bridge (mode ovs) serve it"
	}
	o.UserspaceLoopback6 = s.UserspaceLoopback6(by)
	if by == mode.Windows {
		o.NotWeighing = "HNS divides connections evenly"
		o.NotClosing = "HNS cannot end single connections: on this node they stay with removed endpoints"
	}
	return o
}

// UserspaceLoopback6 reports whether a mode serves TCP NodePorts at [::1] by a proxy in user space: where nkp
// serves what the node sends to itself, and --nodeport-addresses names that address. As in kube-proxy, ::/0
// does not.
func (s *Settings) UserspaceLoopback6(by mode.Mode) bool {
	switch {
	case by == mode.Windows:
		return false
	case by == mode.OVS && (s.HostTraffic == bridge.HostOVS || s.HostTraffic == bridge.HostOff):
		return false
	}
	return slices.ContainsFunc(s.NodePortAddresses, func(p netip.Prefix) bool {
		return p.Bits() > 0 && p.Contains(k8s.Loopback6)
	})
}

// cost returns what a Service port costs: on a bridge the larger one of what it takes there and in nftables
// beside it.
func (s *Settings) cost(by mode.Mode) func(*k8s.Size) int {
	pings := func(cost, more func(*k8s.Size) int) func(*k8s.Size) int {
		if !s.AnswerPing {
			return cost
		}
		return func(z *k8s.Size) int { return cost(z) + more(z) }
	}
	onBridge, inNFTables := pings(pipeline.Cost, pipeline.PingCost), pings(nftrules.Cost, nftrules.PingCost)
	switch {
	case by == mode.IPTables:
		return pings(iprules.Cost, iprules.PingCost)
	case by == mode.NFTables:
		return inNFTables
	case by == mode.Windows:
		return plan.Cost
	case s.HostTraffic == bridge.HostOVS || s.HostTraffic == bridge.HostOff:
		return onBridge
	}
	return func(z *k8s.Size) int { return max(onBridge(z), inNFTables(z)) }
}
