package differential

import (
	"fmt"
	"net"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/proxy"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/oracle"
)

// Facts returns everything that the proxiers would program.
func (k *KubeProxy) Facts() oracle.Facts {
	facts, owners := oracle.Facts{}, map[string][]string{}
	for _, p := range k.proxiers {
		for name, port := range p.services {
			v := view{name: portName(name, p.family), port: port, endpoints: p.endpoints[name], topology: k.topology}
			v.add(facts)
			for _, f := range frontendsOf(port) {
				claim := oracle.ClaimText(v.name, f.address, f.port)
				owners[claim] = append(owners[claim], oracle.OwnerText(v.name, f.typ))
			}
		}
	}
	facts.AddClaims(owners)
	return facts
}

func portName(n proxy.ServicePortName, f k8s.Family) k8s.PortName {
	return k8s.PortName{
		ServiceName: k8s.ServiceName{Namespace: n.Namespace, Name: n.Name},
		Port:        n.Port, Protocol: n.Protocol, Family: f,
	}
}

// view is what decides about one Service port.
type view struct {
	name      k8s.PortName
	port      proxy.ServicePort
	endpoints []proxy.Endpoint
	topology  map[string]string

	readyServes bool // a ready endpoint counts as serving: see the corrections
}

// add adds the facts of the port, as the nftables and iptables proxiers decide them (syncProxyRules).
func (v view) add(facts oracle.Facts) {
	cluster, local, _, any := proxy.CategorizeEndpoints(v.endpoints, v.port, oracle.ThisNode, v.topology)
	facts[oracle.Fact{Port: v.name, What: oracle.Affinity}] = affinityText(v.port)
	facts[oracle.Fact{Port: v.name, What: oracle.ClusterEndpoints}] = endpointsText(cluster, v.port.UsesClusterEndpoints())
	facts[oracle.Fact{Port: v.name, What: oracle.LocalEndpoints}] = endpointsText(local, v.port.UsesLocalEndpoints())
	if v.name.Protocol == v1.ProtocolUDP {
		var serving []string
		for _, e := range v.endpoints {
			if e.IsServing() || v.readyServes && e.IsReady() { // pkg/proxy/conntrack
				serving = append(serving, e.String())
			}
		}
		facts[oracle.Fact{Port: v.name, What: oracle.Serving}] = oracle.List(serving)
	}
	for _, f := range frontendsOf(v.port) {
		at := oracle.FrontendText(f.typ, f.address, f.port)
		facts[oracle.Fact{Port: v.name, What: oracle.FrontendPolicy, At: at}] = string(f.policy())
		if f.typ == k8s.LoadBalancer {
			facts[oracle.Fact{Port: v.name, What: oracle.SourceRanges, At: at}] = rangesText(v.port.LoadBalancerSourceRanges())
		}
		facts[oracle.Fact{Port: v.name, What: oracle.Traffic, At: at}] = trafficText(f.local, cluster, local, any)
	}
}

// trafficText is the proxiers' decision: hasInternalEndpoints, hasExternalEndpoints and the filter verdicts.
func trafficText(policyLocal bool, cluster, local []proxy.Endpoint, any bool) string {
	reached := cluster
	if policyLocal {
		reached = local
	}
	switch {
	case !any:
		return string(k8s.Reject)
	case policyLocal && len(local) == 0:
		return string(k8s.Drop)
	}
	var texts []string
	for _, e := range reached {
		texts = append(texts, e.String())
	}
	return oracle.List(texts)
}

// frontend is an address at which kube-proxy captures traffic.
type frontend struct {
	typ     k8s.FrontendType
	address string // "": every address of the node
	port    int
	local   bool // policy Local
}

func (f frontend) policy() k8s.Policy {
	if f.local {
		return k8s.Local
	}
	return k8s.Cluster
}

func frontendsOf(p proxy.ServicePort) []frontend {
	all := []frontend{{k8s.ClusterIP, p.ClusterIP().String(), p.Port(), p.InternalPolicyLocal()}}
	external := p.ExternalPolicyLocal()
	for _, ip := range p.ExternalIPs() {
		all = append(all, frontend{k8s.ExternalIP, ip.String(), p.Port(), external})
	}
	for _, ip := range p.LoadBalancerVIPs() {
		all = append(all, frontend{k8s.LoadBalancer, ip.String(), p.Port(), external})
	}
	if p.NodePort() != 0 {
		all = append(all, frontend{k8s.NodePort, "", p.NodePort(), external})
	}
	return all
}

func affinityText(p proxy.ServicePort) string {
	if p.SessionAffinityType() != v1.ServiceAffinityClientIP {
		return "none"
	}
	return fmt.Sprintf("%d s", p.StickyMaxAgeSeconds())
}

func endpointsText(all []proxy.Endpoint, used bool) string {
	if !used {
		return oracle.NotComputed
	}
	var texts []string
	for _, e := range all {
		texts = append(texts, oracle.EndpointText(e.String(), e.IsLocal()))
	}
	return oracle.List(texts)
}

// rangesText writes source ranges; those of the proxiers may be 4-in-6.
func rangesText(ranges []*net.IPNet) string {
	var texts []string
	for _, r := range ranges {
		p, err := netip.ParsePrefix(r.String())
		if err != nil {
			panic(err)
		}
		texts = append(texts, p.String())
	}
	return oracle.Set(texts)
}
