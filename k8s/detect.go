package k8s

import (
	"fmt"
	"net/netip"
	"slices"
)

// DetectLocalMode names a way to tell this node's pods from everyone else, as kube-proxy's --detect-local-mode does.
type DetectLocalMode string

// The modes of kube-proxy; the empty one detects nothing.
const (
	DetectByClusterCIDR     DetectLocalMode = "ClusterCIDR"
	DetectByNodeCIDR        DetectLocalMode = "NodeCIDR"
	DetectByBridge          DetectLocalMode = "BridgeInterface"
	DetectByInterfacePrefix DetectLocalMode = "InterfaceNamePrefix"
	DetectNothing           DetectLocalMode = ""
)

// DetectLocal is how pods are told from everyone else.
type DetectLocal struct {
	Mode DetectLocalMode
	// CIDRs are the pod ranges of the cluster (ClusterCIDR); none: nothing is detected.
	CIDRs []netip.Prefix
	// Interface is the bridge (BridgeInterface) or the beginning of the names of pods' interfaces (InterfaceNamePrefix).
	Interface string
}

// Validate reports what is wrong, nil if it can be used.
func (d *DetectLocal) Validate() error {
	switch d.Mode {
	case DetectByClusterCIDR, DetectByNodeCIDR, DetectNothing:
	case DetectByBridge:
		if d.Interface == "" {
			return fmt.Errorf("--detect-local-mode %s needs the bridge's name: --pod-bridge-interface", d.Mode)
		}
	case DetectByInterfacePrefix:
		if d.Interface == "" {
			return fmt.Errorf("--detect-local-mode %s needs the beginning of the names: --pod-interface-name-prefix", d.Mode)
		}
	default:
		return fmt.Errorf("--detect-local-mode %q is not ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", d.Mode)
	}
	return nil
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

// warnDetector returns what keeps the detection from working.
func (t *Tracker) warnDetector() []Warning {
	if t.opts.DetectLocal.Mode == DetectByNodeCIDR && len(t.model.Node.PodCIDRs) == 0 {
		return []Warning{{Text: fmt.Sprintf("--detect-local-mode NodeCIDR: node %s has no spec.podCIDRs yet, so that no client counts as its pod", t.model.Node.Name)}}
	}
	return nil
}
