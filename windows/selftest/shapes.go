package selftest

import (
	"encoding/json"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// What the self-test uses: addresses of 198.18.0.0/15, which RFC 2544 (section C.2.2) sets apart for tests of
// network devices.
const (
	networkName = "nkp-selftest"
	podName     = "nkp-selftest-pod"
	hostMAC     = "02-15-c6-12-ff-01" // stands for the host's

	// nodePort is that of the NodePort shape, on the host's own addresses for a moment. It is outside of the
	// default NodePort and dynamic ranges.
	nodePort = 47998
)

var (
	everything   = netip.MustParsePrefix("198.18.0.0/15")
	podSubnet    = netip.MustParsePrefix("198.18.0.0/24")
	gateway      = netip.MustParseAddr("198.18.0.1")
	sourceVIP    = netip.MustParseAddr("198.18.0.2")
	localPod     = netip.MustParseAddr("198.18.0.10")
	remoteSubnet = netip.MustParsePrefix("198.18.1.0/24")
	remotePods   = []netip.Addr{netip.MustParseAddr("198.18.1.20"), netip.MustParseAddr("198.18.1.21")}
	thisNode     = netip.MustParseAddr("198.19.255.1")
	otherNode    = netip.MustParseAddr("198.19.255.2")
)

// ours reports whether a network is one that a self-test made: by name and subnet, so that a run that was
// killed can be cleaned up without a record.
func ours(network json.RawMessage) bool {
	n := parseNetwork(network)
	return n.Name == networkName && len(n.prefixes()) == 1 && n.prefixes()[0] == podSubnet
}

// networkInfo is what the self-test reads of a network.
type networkInfo struct {
	ID, Name, Type string
	Ipams          []struct {
		Subnets []struct {
			Prefix string `json:"IpAddressPrefix"`
		}
	}
	Policies []hns.Policy
}

func parseNetwork(object json.RawMessage) (n networkInfo) {
	_ = json.Unmarshal(object, &n) // what does not parse has no name
	return n
}

// prefixes returns the subnets of a network.
func (n *networkInfo) prefixes() (list []netip.Prefix) {
	for _, i := range n.Ipams {
		for _, s := range i.Subnets {
			if p, err := netip.ParsePrefix(s.Prefix); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// networkBody returns the network to create. adapter "": HNS needs none, or chooses.
func networkBody(networkType, adapter string) []byte {
	type object = map[string]any
	route := object{"NextHop": gateway.String(), "DestinationPrefix": "0.0.0.0/0"}
	subnet := object{"IpAddressPrefix": podSubnet.String(), "Routes": []object{route}}
	const nonPersistent = 8 // gone after a restart of Windows
	n := object{
		"Name":          networkName,
		"Type":          networkType,
		"SchemaVersion": hns.Schema2,
		"Flags":         nonPersistent,
		"Ipams":         []object{{"Type": "Static", "Subnets": []object{subnet}}},
	}

	var policies []object
	if adapter != "" {
		settings := object{"NetworkAdapterName": adapter}
		policies = append(policies, object{"Type": "NetAdapterName", "Settings": settings})
	}
	if networkType == hns.NetworkOverlay {
		const vni = 4098
		subnet["Policies"] = []object{{"Type": "VSID", "Settings": object{"IsolationId": vni}}}
		settings := object{
			"DestinationPrefix":           remoteSubnet.String(),
			"ProviderAddress":             otherNode.String(),
			"IsolationId":                 vni,
			"DistributedRouterMacAddress": hostMAC,
		}
		policies = append(policies, object{"Type": hns.PolicyRemoteSubnetRoute, "Settings": settings})
	}
	if len(policies) > 0 {
		n["Policies"] = policies
	}
	text, _ := json.Marshal(n) // it is JSON
	return text
}

// wanted returns nkp's own plan for Services that have among them a frontend of each kind.
func wanted(network networkInfo, version hns.Version) *plan.Wanted {
	facts := &plan.Facts{
		Network:   hns.Network{ID: hns.CanonicalID(network.ID), Name: networkName, Type: network.Type},
		Version:   version,
		SourceVIP: sourceVIP, NodeIP: thisNode, HostMAC: hostMAC,
		HealthEndpoint: localPod, HealthzPort: 10256,
	}
	if facts.Network.Overlay() {
		facts.Network.RemoteSubnets = []hns.RemoteSubnet{{Prefix: remoteSubnet, Provider: otherNode}}
	}

	ports := map[k8s.PortName]*k8s.ServicePort{}
	add := func(name string, protocol v1.Protocol, change func(*k8s.ServicePort), frontends ...k8s.Frontend) {
		local := []k8s.Endpoint{{Addr: netip.AddrPortFrom(localPod, 8080), Local: true}}
		all := local
		for _, a := range remotePods {
			all = append(all[:len(all):len(all)], k8s.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
		}
		service := k8s.ServiceName{Namespace: networkName, Name: name}
		n := k8s.PortName{ServiceName: service, Protocol: protocol, Family: k8s.IPv4}
		sp := &k8s.ServicePort{Name: n, ClusterEndpoints: all, LocalEndpoints: local, Frontends: frontends}
		if change != nil {
			change(sp)
		}
		ports[n] = sp
	}
	at := func(t k8s.FrontendType, last byte, policy k8s.Policy) k8s.Frontend {
		return k8s.Frontend{Type: t, Address: netip.AddrFrom4([4]byte{198, 19, 0, last}), Port: 80, Policy: policy}
	}
	affinity := func(sp *k8s.ServicePort) { sp.AffinitySeconds = 10800 }
	preserve := func(sp *k8s.ServicePort) { sp.PreserveDestination = true }
	add("cluster-ip", v1.ProtocolTCP, nil, at(k8s.ClusterIP, 1, k8s.Cluster))
	add("cluster-ip-udp", v1.ProtocolUDP, nil, at(k8s.ClusterIP, 2, k8s.Cluster))
	add("affinity", v1.ProtocolTCP, affinity, at(k8s.ClusterIP, 3, k8s.Cluster))
	add("external-ip", v1.ProtocolTCP, nil, at(k8s.ExternalIP, 4, k8s.Cluster))
	add("external-ip-local", v1.ProtocolTCP, nil, at(k8s.ExternalIP, 5, k8s.Local))
	add("load-balancer", v1.ProtocolTCP, nil, at(k8s.LoadBalancer, 6, k8s.Cluster))
	add("load-balancer-preserve", v1.ProtocolTCP, preserve, at(k8s.LoadBalancer, 7, k8s.Local))
	add("node-port", v1.ProtocolTCP, nil, k8s.Frontend{Type: k8s.NodePort, Port: nodePort, Policy: k8s.Cluster})
	add("sctp", v1.ProtocolSCTP, nil, at(k8s.ClusterIP, 8, k8s.Cluster))
	w := plan.New(ports, nil, facts)
	facts.EnableDSR = true
	add("cluster-ip-dsr", v1.ProtocolTCP, nil, at(k8s.ClusterIP, 9, k8s.Cluster))
	for f, l := range plan.New(ports, nil, facts).LoadBalancers {
		if l.Service.Name == "cluster-ip-dsr" {
			w.LoadBalancers[f] = l
		}
	}
	return w
}
