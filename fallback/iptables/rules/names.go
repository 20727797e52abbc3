package rules

import (
	"cmp"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Table is a table of iptables.
type Table string

// The tables.
const (
	NAT    Table = "nat"
	Filter Table = "filter"
	Mangle Table = "mangle" // has only a canary
)

// The chains that do not depend on Services; the names are kube-proxy's. A name may be in use in several
// tables.
const (
	// nat: one rule for each frontend; filter: ClusterIPs without endpoints
	Services         = "KUBE-SERVICES"
	ExternalServices = "KUBE-EXTERNAL-SERVICES" // filter: other frontends without endpoints
	// nat: one rule for each NodePort; filter: health check node ports
	NodePorts   = "KUBE-NODEPORTS"
	MarkMasq    = "KUBE-MARK-MASQ"      // nat: asks for masquerading
	Postrouting = "KUBE-POSTROUTING"    // nat: masquerades
	Forward     = "KUBE-FORWARD"        // filter: accepts what is forwarded for Services
	Firewall    = "KUBE-PROXY-FIREWALL" // filter: drops clients outside loadBalancerSourceRanges
	// filter: kubelet's; has the rule that protects 127.0.0.0/8 from the network
	LocalFirewall = "KUBE-FIREWALL"
	// all tables: empty, and no canary packet of nkp's; if it is gone, the table was flushed
	Canary = "KUBE-PROXY-CANARY"

	// ClusterIPs is nkp's own: it refuses unserved ports of ClusterIPs, and drops packets to unallocated
	// ClusterIPs.
	ClusterIPs = "KUBE-CLUSTER-IPS"
)

// The name prefixes of a Service port's own chains, in table nat.
const (
	prefixCluster  = "KUBE-SVC-" // spreads over the endpoints of policy Cluster
	prefixLocal    = "KUBE-SVL-" // spreads over the endpoints of policy Local
	prefixExternal = "KUBE-EXT-" // traffic to NodePort, external IPs and load balancer
	prefixFirewall = "KUBE-FW-"  // source ranges of the load balancer
	prefixEndpoint = "KUBE-SEP-" // one endpoint
)

// ownPrefixes are in the order in which the chains jump to each other.
var ownPrefixes = []string{prefixFirewall, prefixExternal, prefixCluster, prefixLocal, prefixEndpoint}

// IsServiceChain reports whether a chain of table nat is one of a Service port's own, kube-proxy's or nkp's.
func IsServiceChain(name string) bool {
	return rank(name) < len(ownPrefixes)
}

func rank(name string) int {
	for i, p := range ownPrefixes {
		if strings.HasPrefix(name, p) {
			return i
		}
	}
	return len(ownPrefixes)
}

// CompareServiceChains orders Services' own chains so that each comes before those it jumps to.
func CompareServiceChains(a, b string) int {
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}

// endpointChain returns the name of an endpoint's chain; endpoint is its address and port.
func endpointChain(n k8s.PortName, endpoint string) string {
	return prefixEndpoint + serving.PortHash(n, endpoint)
}
