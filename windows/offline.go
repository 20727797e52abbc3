package windows

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// OfflineVersion is the HNS that PlanOffline plans for: the first that can do everything nkp uses.
var OfflineVersion = hns.Version{Major: 15, Minor: 5}

// PlanOffline returns the HNS objects for a model as JSON, without an HNS, on any system (nkp plan -o hcn).
// It assumes an overlay network if there is a source VIP, else an L2Bridge; remote lists the pod ranges of
// other nodes. It assumes that all of this node's endpoints exist. The warnings name facts that are known
// only on the node.
func PlanOffline(
	model *k8s.Model, opts Options, remote []hns.RemoteSubnet,
) (text []byte, warnings []string, err error) {
	f := &plan.Facts{
		Network:     hns.Network{Name: opts.NetworkName, Type: hns.NetworkL2Bridge},
		Version:     OfflineVersion,
		SourceVIP:   opts.SourceVIP,
		HostMAC:     opts.HostMAC,
		EnableDSR:   opts.EnableDSR,
		HealthzPort: opts.HealthzPort,
	}
	f.NodeIP = k8s.IPv4.First(model.Node.IPs)
	if opts.SourceVIP.IsValid() {
		f.Network.Type, f.Network.RemoteSubnets = hns.NetworkOverlay, remote
		warnings = overlayUnknowns(model, f)
	}
	if opts.ForwardHealthCheckVIP {
		warnings = append(warnings, "health checks of load balancers are left out: only HNS knows the address of "+
			"endpoint "+cmp.Or(opts.RootEndpointName, defaultRootEndpoint))
	}
	text, err = plan.New(model.Ports, model.HealthChecks, f).JSON(f)
	return text, warnings, err
}

// overlayUnknowns returns warnings about missing facts that an overlay network needs.
func overlayUnknowns(model *k8s.Model, f *plan.Facts) (warnings []string) {
	if f.HostMAC == "" {
		warnings = append(warnings, "the MAC address of this node is not known (--node-mac): "+
			"endpoints of Services and of the source VIP lack it")
	}
	if !f.NodeIP.IsValid() {
		warnings = append(warnings, "this node's IPv4 address is not known (--node-ip): "+
			"endpoints lack their provider address")
	}
	var outside []string
	for _, sp := range model.Ports {
		for _, e := range slices.Concat(sp.ClusterEndpoints, sp.LocalEndpoints) {
			if a := e.Addr.Addr(); !e.Local && a.Is4() && a != f.NodeIP && !f.Network.Provider(a).IsValid() {
				outside = append(outside, a.String())
			}
		}
	}
	slices.Sort(outside)
	if outside = slices.Compact(outside); len(outside) > 0 {
		warnings = append(warnings, fmt.Sprintf("no Node has a pod range (spec.podCIDRs) with %s: "+
			"taken for addresses outside the cluster", dataplane.Some(3, outside)))
	}
	return warnings
}
