package agent

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// Settings are what the command line says, beside where objects come from.
type Settings struct {
	bridge.Settings

	NodeName         string
	ServiceProxyName string
	Socket           string // the agent's own socket; "": none

	NodeIPs           []netip.Addr
	DetectLocal       k8s.DetectLocal
	ServiceCIDRs      []netip.Prefix
	NodePortAddresses []netip.Prefix
	NodePortPrimary   bool
	IgnoreExternalIPs bool

	HealthzAddr  string // of /healthz and /livez; "": nowhere
	BindHardFail bool   // not to get an address to listen on is fatal
	Conntrack    sysctl.Settings
}

// TrackerOptions gives the options of the model.
func (s *Settings) TrackerOptions() k8s.Options {
	return k8s.Options{
		NodeName:          s.NodeName,
		ServiceProxyName:  s.ServiceProxyName,
		NodePortAddresses: s.NodePortAddresses,
		NodePortPrimary:   s.NodePortPrimary,
		IgnoreExternalIPs: s.IgnoreExternalIPs,
		ServiceCIDRs:      s.ServiceCIDRs,
		NodeIPs:           s.NodeIPs,
		DetectLocal:       s.DetectLocal,
	}
}
