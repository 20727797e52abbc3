package command

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// planHNS prints the objects that HNS should have.
func (s *settings) planHNS(model *k8s.Model, stdout, stderr io.Writer) error {
	text, warnings, err := windows.PlanOffline(model, s.WindowsOptions(), s.remoteSubnets())
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintf(stderr, "nkp: warning: %s\n", w)
	}
	_, err = stdout.Write(text)
	return err
}

// remoteSubnets returns the pod ranges of the other nodes in the manifests, as an overlay network would have
// them.
func (s *settings) remoteSubnets() (remote []hns.RemoteSubnet) {
	if s.manifests == "" {
		return nil
	}
	for _, c := range manifest.Load(s.manifests).Objects {
		node, ok := c.Object.(*v1.Node)
		if !ok || node.Name == s.NodeName {
			continue
		}
		for _, a := range node.Status.Addresses {
			at, err := netip.ParseAddr(a.Address)
			if err != nil || a.Type != v1.NodeInternalIP || !at.Is4() {
				continue
			}
			for _, cidr := range append(node.Spec.PodCIDRs, node.Spec.PodCIDR) {
				if p, err := netip.ParsePrefix(cidr); err == nil && p.Addr().Is4() {
					remote = append(remote, hns.RemoteSubnet{Prefix: p, Provider: at})
				}
			}
			break
		}
	}
	return remote
}

// diffHNS compares the objects of HNS with those computed from the source, without an agent.
func (s *settings) diffHNS(ctx context.Context, stderr io.Writer) (string, error) {
	plane, err := windows.New(s.WindowsOptions())
	if err != nil {
		return "", usageError("%w", err)
	}
	d, err := s.desired(ctx, mode.Windows, true, stderr)
	if err != nil {
		return "", err
	}
	plane.Update(d.model, d.changes)
	return plane.Diff(ctx)
}

// ownedHNS describes nkp's objects in HNS according to the state file, for when no agent answers; "":
// unknown.
func (s *settings) ownedHNS() string {
	endpoints, loadBalancers, err := windows.Owned(s.Windows)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("HNS holds %s and %s of nkp's, by the state file",
		dataplane.Count(loadBalancers, "load balancer"), dataplane.Count(endpoints, "endpoint"))
}
