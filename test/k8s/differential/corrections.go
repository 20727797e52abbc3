package differential

import (
	"slices"

	"k8s.io/kubernetes/pkg/proxy"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/oracle"
)

// corrections are accepted differences about endpoints. Each changes one thing in what kube-proxy's code is asked, and
// nkp's answer must then be kube-proxy's, exactly: an accepted difference never hides another one.
type corrections uint

const (
	unusedList corrections = 1 << iota
	duplicates
	relabelled
	readyServes
	allCorrections = iota
)

// applicable returns which corrections apply to the case, at one Service port.
func (k *KubeProxy) applicable(d oracle.Disagreement) (c corrections) {
	switch d.What {
	case oracle.ClusterEndpoints, oracle.LocalEndpoints, oracle.Traffic, oracle.Serving:
	default:
		return 0
	}
	if d.KubeProxy == oracle.NotComputed {
		c |= unusedList
	}
	if ambiguous(k.endpointsNamed(d.Port)) {
		c |= duplicates
	}
	if k.leftBy[d.Port.ServiceName] {
		c |= relabelled
	}
	if d.What == oracle.Serving && slices.ContainsFunc(k.endpointsNamed(d.Port), func(e namedEndpoint) bool { return e.ready && !e.serving }) {
		c |= readyServes
	}
	return c
}

// explained returns the fewest corrections under which kube-proxy's code agrees with nkp; none if there are no such.
func (k *KubeProxy) explained(d oracle.Disagreement) corrections {
	can := k.applicable(d)
	if can == 0 {
		return 0
	}
	var best corrections
	for c := corrections(1); c < 1<<allCorrections; c++ {
		if c&^can == 0 && (best == 0 || bits(c) < bits(best)) && k.corrected(d.Port, c)[d.Fact] == d.Nkp {
			best = c
		}
	}
	return best
}

func bits(c corrections) (n int) {
	for ; c != 0; c &= c - 1 {
		n++
	}
	return n
}

// corrected returns the facts about one Service port under corrections.
func (k *KubeProxy) corrected(name k8s.PortName, c corrections) oracle.Facts {
	facts := oracle.Facts{}
	key := proxy.ServicePortName{Port: name.Port, Protocol: name.Protocol}
	key.Namespace, key.Name = name.Namespace, name.Name
	for _, p := range k.proxiers {
		if p.family != name.Family || p.services[key] == nil {
			continue
		}
		v := view{name: name, port: p.services[key], endpoints: p.endpoints[key], topology: k.topology, readyServes: c&readyServes != 0}
		if c&relabelled != 0 {
			v.endpoints = endpointsOf(p.family, k.slicesOf(name.ServiceName))[key]
		}
		if c&duplicates != 0 {
			v.endpoints = endpointsOf(p.family, onlyPreferred(name, k.endpointsNamed(name)))[key]
		}
		if c&unusedList != 0 {
			v.port = bothPolicies{v.port}
		}
		v.add(facts)
	}
	return facts
}

// bothPolicies is a Service port that uses the endpoints of both policies.
type bothPolicies struct{ proxy.ServicePort }

func (bothPolicies) UsesClusterEndpoints() bool { return true }
func (bothPolicies) UsesLocalEndpoints() bool   { return true }
