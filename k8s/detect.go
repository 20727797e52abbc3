package k8s

import (
	"fmt"
	"net/netip"
	"slices"
)

// DetectLocalMode names a way to recognize traffic of this node's pods (kube-proxy's --detect-local-mode).
type DetectLocalMode string

// The modes of kube-proxy; "" detects nothing.
const (
	DetectByClusterCIDR     DetectLocalMode = "ClusterCIDR"
	DetectByNodeCIDR        DetectLocalMode = "NodeCIDR"
	DetectByBridge          DetectLocalMode = "BridgeInterface"
	DetectByInterfacePrefix DetectLocalMode = "InterfaceNamePrefix"
)

// DetectLocal configures how traffic of this node's pods is recognized.
type DetectLocal struct {
	Mode DetectLocalMode
	// CIDRs are the pod ranges of the cluster (ClusterCIDR); none: nothing is detected.
	CIDRs []netip.Prefix
	// Interface is the bridge (BridgeInterface) or the name prefix of pod interfaces (InterfaceNamePrefix).
	Interface string
}

// detector resolves Options.DetectLocal for a node.
func (t *Tracker) detector(node *Node) Detector {
	d := &t.opts.DetectLocal
	switch d.Mode {
	case DetectByClusterCIDR:
		return Detector{CIDRs: d.CIDRs}
	case DetectByNodeCIDR:
		return Detector{CIDRs: slices.Clone(node.PodCIDRs)}
	case DetectByBridge:
		return Detector{Bridge: d.Interface}
	case DetectByInterfacePrefix:
		return Detector{InterfacePrefix: d.Interface}
	}
	return Detector{}
}

// warnDetector returns a warning if detection cannot work yet.
func (t *Tracker) warnDetector() []Warning {
	if t.opts.DetectLocal.Mode == DetectByNodeCIDR && len(t.model.Node.PodCIDRs) == 0 {
		return []Warning{{Text: fmt.Sprintf("--detect-local-mode NodeCIDR: node %s has no spec.podCIDRs "+
			"yet: no client counts as a pod of this node", t.model.Node.Name)}}
	}
	return nil
}
