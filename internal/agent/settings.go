package agent

import (
	"context"
	"math"
	"net/netip"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows"
)

// Settings are the command-line settings, except for the source of objects.
type Settings struct {
	bridge.Settings

	NodeName         string
	ServiceProxyName string
	Socket           string // the agent's own socket; "": none

	NodeIPs           []netip.Addr
	PrimaryIP         netip.Addr // the node's address of that family, unless NodeIPs are given; not valid or unspecified: none
	DetectLocal       k8s.DetectLocal
	ServiceCIDRs      []netip.Prefix
	NodePortAddresses []netip.Prefix
	NodePortPrimary   bool
	IgnoreExternalIPs bool

	IPTables fallback.Options
	Windows  windows.Options

	StuckAfter   time.Duration // how long a loop may work without progress; 0: dataplane.Bound. For tests
	HealthzAddr  string        // of /healthz and /livez; "": nowhere
	BindHardFail bool          // not to get an address to listen on is fatal
	Metrics      MetricsSettings
	Conntrack    sysctl.Settings
}

// ownPortMin is where the kernel's default range for the node's own connections begins (net.ipv4.ip_local_port_range). Above it
// are neither NodePorts nor the ports with which the bridge masquerades (pipeline.MasqueradePortMax).
const ownPortMin = 32768

// IPTablesOptions returns the options of the iptables data plane for a scope.
func (s *Settings) IPTablesOptions(scope serving.Scope) fallback.Options {
	o := s.IPTables
	o.Scope, o.MasqueradeAll = scope, s.MasqueradeAll
	o.AffinityLimit = int(s.AffinityLimit)
	switch scope {
	case serving.Host:
		o.PodDevice = s.Bridge // pods of other nodes come in at the NIC, and are served
	case serving.Own: // the bridge masquerades as the node too
		o.MasqueradeMin, o.MasqueradeMax = ownPortMin, math.MaxUint16
	}
	return o
}

// WhyNotNFTables returns why nftables must not take the place of iptables for a scope, where --mode leaves the choice; "": it may.
func (s *Settings) WhyNotNFTables(ctx context.Context, scope serving.Scope) string {
	if s.IPTables.Backend != "" {
		return "--iptables-backend is set"
	}
	return fallback.WhyNotNFTables(ctx, s.IPTablesOptions(scope))
}

// WindowsOptions returns the options of the HNS data plane. kube-proxy's iptables periods apply to all its modes
// except IPVS.
func (s *Settings) WindowsOptions() windows.Options {
	o := s.Windows
	o.AuditPeriod, o.MinSync = s.IPTables.SyncPeriod, s.IPTables.MinSyncPeriod
	if !s.NodeMAC.IsZero() {
		o.HostMAC = s.NodeMAC.String()
	}
	return o
}

// TrackerOptions returns the options of the model, for a data plane.
func (s *Settings) TrackerOptions(mode Mode) k8s.Options {
	notConsistent := ""
	if mode != ModeOVS {
		notConsistent = "only nodes with an Open vSwitch bridge (mode ovs) serve it"
	}
	return k8s.Options{
		NodeName:          s.NodeName,
		ServiceProxyName:  s.ServiceProxyName,
		NodePortAddresses: s.NodePortAddresses,
		NodePortPrimary:   s.NodePortPrimary,
		IgnoreExternalIPs: s.IgnoreExternalIPs,
		ServiceCIDRs:      s.ServiceCIDRs,
		NodeIPs:           s.NodeIPs,
		PrimaryIP:         s.PrimaryIP,
		DetectLocal:       s.DetectLocal,
		NotConsistent:     notConsistent,
	}
}
