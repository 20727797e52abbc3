package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// sourceOf determines the kind of client and adds a step about it.
func (e *explanation) sourceOf() {
	ip := e.q.From.Addr()
	d := &e.Model.Detector
	place := e.Tracker.PlaceOf(ip)
	e.Place = place

	switch {
	case ip.IsLoopback() || place.IsNode && place.Node == e.Model.Node.Name, e.q.In == "LOCAL":
		e.Source = k8s.ThisNode
		e.step("from %s: this node, %s", ip, nodeName(e.Model.Node.Name))
		return
	case e.isPod(ip, place):
		e.Source = k8s.Pod
		how := ""
		if i := slices.IndexFunc(d.CIDRs, func(p netip.Prefix) bool { return p.Contains(ip) }); i >= 0 {
			how = " (pod range " + d.CIDRs[i].String() + ")"
		}
		e.step("from %s: a pod%s%s", ip, e.where(place), how)
		return
	}

	switch {
	case place.IsNode:
		e.step("from %s: node %s, which counts as outside here", ip, place.Node)
	case !d.Has(e.family):
		e.step("from %s: not this node; without --cluster-cidr (or another --detect-local-mode) pods are "+
			"treated like clients from outside", ip)
	case len(d.CIDRs) > 0:
		e.step("from %s: outside, in no pod range (%s)", ip, joinPrefixes(d.CIDRs))
	default:
		e.step("from %s: not a pod of this node, so it counts as outside", ip)
	}
}

// isPod applies the detector.
func (e *explanation) isPod(ip netip.Addr, place k8s.Place) bool {
	d := &e.Model.Detector
	hasCIDR := slices.ContainsFunc(d.CIDRs, func(p netip.Prefix) bool { return p.Contains(ip) })
	switch {
	case d.Bridge == "" && d.InterfacePrefix == "":
		return hasCIDR
	case e.q.In == "":
		return place.Node == e.Model.Node.Name && place.Node != "" && !place.IsNode
	case d.InterfacePrefix != "":
		return strings.HasPrefix(e.q.In, d.InterfacePrefix)
	}
	return e.q.In != e.Uplink
}

// where returns on which node a pod is; "" if unknown.
func (e *explanation) where(p k8s.Place) string {
	switch p.Node {
	case "":
		return ""
	case e.Model.Node.Name:
		return " of this node"
	}
	return " of node " + p.Node
}

func nodeName(name string) string {
	if name == "" {
		return "whose name is not known"
	}
	return name
}

func joinPrefixes(ps []netip.Prefix) string {
	texts := make([]string, len(ps))
	for i, p := range ps {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", one)
	}
	return fmt.Sprintf("%d %s", n, many)
}
