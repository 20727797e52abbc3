package k8s

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// nodeFacts is a Node object reduced to what the model needs.
type nodeFacts struct {
	Node
	origin Origin
	warned
}

// newNodeFacts reads a Node: internal addresses come before external ones.
func newNodeFacts(o *v1.Node, origin Origin) *nodeFacts {
	n := &nodeFacts{Node: Node{
		Name:        o.Name,
		Known:       true,
		UID:         string(o.UID),
		Zone:        o.Labels[v1.LabelTopologyZone],
		NotEligible: notEligible(o),
	}, origin: origin}

	for _, typ := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i, a := range o.Status.Addresses {
			if a.Type != typ {
				continue
			}
			if ip, ok := ParseAddr(a.Address); !ok {
				n.warn(field.NewPath("status", "addresses").Index(i).Child("address"),
					"%s is not an IP address: ignored", brief.Quote(a.Address))
			} else if !slices.Contains(n.IPs, ip) {
				n.IPs = append(n.IPs, ip)
			}
		}
	}

	cidrs, path := o.Spec.PodCIDRs, field.NewPath("spec", "podCIDRs")
	if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
		cidrs = []string{o.Spec.PodCIDR}
	}
	n.PodCIDRs = n.prefixes(path, cidrs)
	return n
}

// taintToBeDeleted is the taint that the cluster autoscaler puts on a node that it is about to remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// notEligible returns why load balancers should send no new traffic to a node (kube-proxy's rule, KEP-3836);
// "": they may.
func notEligible(o *v1.Node) string {
	if !o.DeletionTimestamp.IsZero() {
		return "the Node is being deleted"
	}
	for _, t := range o.Spec.Taints {
		if t.Key == taintToBeDeleted {
			return "the Node has the taint " + taintToBeDeleted
		}
	}
	return ""
}

// Node returns the current facts of this node's Node object, with the options applied, without waiting for
// the next Flush.
func (t *Tracker) Node() Node {
	n := Node{Name: t.opts.NodeName}
	if facts := t.nodes[t.opts.NodeName]; facts != nil {
		n = facts.Node
	}
	if ip := t.opts.PrimaryIP; ip.IsValid() && !ip.IsUnspecified() {
		others := slices.DeleteFunc(slices.Clone(n.IPs), func(o netip.Addr) bool {
			return FamilyOf(o) == FamilyOf(ip)
		})
		n.IPs = append([]netip.Addr{ip}, others...)
	}
	if len(t.opts.NodeIPs) > 0 {
		n.IPs = slices.Clone(t.opts.NodeIPs)
	}
	n.Local = slices.Clone(n.IPs)
	for _, ip := range t.opts.LocalAddresses {
		if !slices.Contains(n.Local, ip) {
			n.Local = append(n.Local, ip)
		}
	}
	return n
}

func (n *Node) equal(o *Node) bool {
	return n.Name == o.Name && n.Known == o.Known && n.UID == o.UID && n.Zone == o.Zone &&
		n.NotEligible == o.NotEligible &&
		slices.Equal(n.IPs, o.IPs) && slices.Equal(n.Local, o.Local) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

// serviceCIDRs returns the Service ranges, sorted: those of the options, else of all ServiceCIDR objects.
// With a ServiceProxyName it returns none, because an unused address in a range may belong to a Service of
// another proxy. It leaves out the addresses of Services that --skip-services
// names.
func (t *Tracker) serviceCIDRs() []netip.Prefix {
	if t.opts.ServiceProxyName != "" {
		return nil
	}
	all := slices.Clone(t.opts.ServiceCIDRs)
	if len(all) == 0 {
		for _, c := range t.cidrs {
			all = append(all, c...)
		}
	}
	all = without(all, t.skippedAddresses())
	slices.SortFunc(all, comparePrefix)
	return slices.Compact(all)
}

// loopback may be in --nodeport-addresses. The kernel serves no NodePort at the IPv6 loopback address: see
// atLoopback6.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Loopback6 is the IPv6 loopback address. The kernel does not send a packet with this source to an endpoint
// (there is no route_localnet for IPv6), so that a frontend there is for a proxy in user space alone.
var Loopback6 = netip.IPv6Loopback()

// atLoopback6 reports whether NodePorts of a Service port have a frontend at Loopback6.
func (t *Tracker) atLoopback6(name PortName) bool {
	return t.opts.UserspaceLoopback6 && name.Family == IPv6 && name.Protocol == v1.ProtocolTCP
}

// nodePortIPs returns the addresses of a node that NodePorts of a family are restricted to; restricted is
// false if they are served at every address.
func (t *Tracker) nodePortIPs(n *Node, f Family) (ips []netip.Addr, restricted bool) {
	return n.NodePortAddrs(f, t.opts.NodePortPrimary, t.opts.NodePortAddresses, loopback)
}

// movesNodePorts reports whether NodePorts are restricted to other addresses after the node has changed.
func (t *Tracker) movesNodePorts(before, after *Node) bool {
	return slices.ContainsFunc([]Family{IPv4, IPv6}, func(f Family) bool {
		was, _ := t.nodePortIPs(before, f)
		is, _ := t.nodePortIPs(after, f)
		return !slices.Equal(was, is)
	})
}

// NodePortAddrs returns the addresses that NodePorts of a family are restricted to: if primary is set, the
// node's primary one; besides, those of n.Local and of also that are in ranges. restricted is false if they
// are served at every address: without primary no range is of the family, or one contains all of it.
func (n *Node) NodePortAddrs(
	f Family, primary bool, ranges []netip.Prefix, also ...netip.Addr,
) (addrs []netip.Addr, restricted bool) {
	if primary {
		restricted = true
		if ip := f.First(n.IPs); ip.IsValid() {
			addrs = []netip.Addr{ip}
		}
	}
	for _, p := range ranges {
		if FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil, false
		}
		restricted = true
		for _, ip := range append(slices.Clip(n.Local), also...) {
			if p.Contains(ip) && !slices.Contains(addrs, ip) {
				addrs = append(addrs, ip)
			}
		}
	}
	return addrs, restricted
}

// flushNode updates the node facts of the model, its detector of local traffic (--detect-local-mode) among
// them, and reports whether they changed. It marks the Services that depend on a changed fact; those whose
// frontends change as if they had a new definition (newDef).
func (t *Tracker) flushNode() (changed bool) {
	if !t.dirtyNode {
		return false
	}
	t.dirtyNode = false
	before, rangesBefore, node := t.model.Node, t.model.ServiceCIDRs, t.Node()
	cidrs, detector, skipped := t.serviceCIDRs(), t.detector(&node), t.skipped()
	ranges := len(t.model.Detector.CIDRs) != len(detector.CIDRs)
	changed = !before.equal(&node) || !slices.Equal(t.model.ServiceCIDRs, cidrs) ||
		!t.model.Detector.equal(&detector) ||
		!slices.Equal(t.model.Skipped, skipped)
	t.model.Node, t.model.ServiceCIDRs, t.model.Detector, t.model.Skipped = node, cidrs, detector, skipped
	t.warnNode()

	if !slices.Equal(before.Local, node.Local) || !slices.Equal(rangesBefore, cidrs) {
		for _, names := range t.addresses.external { // their overlaps may have changed
			for _, name := range names {
				t.dirty[name] = struct{}{}
			}
		}
	}
	moved := t.movesNodePorts(&before, &node)
	// Where a source range contains an address of the node, a Service takes more objects (Size.OwnAddress),
	// and with more ranges of pods (Size.PodRanges).
	costs := t.opts.Cost != nil && (!slices.Equal(before.IPs, node.IPs) || ranges)
	if moved || costs || before.Name != node.Name || before.Zone != node.Zone {
		for name, s := range t.services {
			t.dirty[name] = struct{}{}
			s.newDef = s.newDef || moved
		}
	}
	return changed
}

// warnNode replaces the warnings about this node's Node object, the local detection and the NodePort
// restriction.
func (t *Tracker) warnNode() {
	ref := Ref{KindNode, "", t.opts.NodeName}
	if facts := t.nodes[t.opts.NodeName]; facts != nil {
		t.warnings.set(ref, facts.origin, facts.warnings)
	} else {
		t.warnings.set(ref, Origin{}, nil)
	}
	ws := t.warnDetector()
	for _, f := range []Family{IPv4, IPv6} {
		if ips, restricted := t.nodePortIPs(&t.model.Node, f); restricted && len(ips) == 0 {
			if !t.opts.NodePortPrimary {
				but := ""
				if t.atLoopback6(PortName{Family: f, Protocol: v1.ProtocolTCP}) {
					but = ", but for TCP at [::1]"
				}
				ws = append(ws, Warning{Text: fmt.Sprintf(
					"the NodePort addresses %v contain no %s address of node %s: "+
						"no NodePort is served over %s%s",
					t.opts.NodePortAddresses, f, t.model.Node.Name, f, but)})
			} else if len(t.model.Node.IPs) == 0 { // a single-family node needs no warning
				ws = append(ws, Warning{Text: fmt.Sprintf(
					"node %s has no address yet: no NodePort is served over %s", t.model.Node.Name, f)})
			}
		}
	}
	t.warnings.set(Ref{}, Origin{}, ws)
}
