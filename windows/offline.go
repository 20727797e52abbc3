package windows

import (
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// OfflineVersion is the HNS that PlanOffline plans for: the first that can do everything nkp uses.
var OfflineVersion = hns.Version{Major: 15, Minor: 5}

// PlanOffline gives what HNS should have for a model as JSON, without an HNS, on any system (nkp plan -o hcn). The network is
// taken for an overlay if there is a source VIP, else for an L2Bridge; all of this node's endpoints are taken to be there.
func PlanOffline(model *k8s.Model, opts Options) ([]byte, error) {
	f := &plan.Facts{
		Network:     hns.Network{Name: opts.NetworkName, Type: hns.NetworkL2Bridge},
		Version:     OfflineVersion,
		SourceVIP:   opts.SourceVIP,
		HostMAC:     opts.HostMAC,
		EnableDSR:   opts.EnableDSR,
		HealthzPort: opts.HealthzPort,
	}
	if opts.SourceVIP.IsValid() {
		f.Network.Type = hns.NetworkOverlay
	}
	f.NodeIP = nodeIPv4(&model.Node)
	return plan.New(model.Ports, model.HealthChecks, f).JSON(f, nil)
}
