package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// GroupVersion and Kind name an NkpConfiguration in a file.
const (
	Group        = "nkp-proxy.github.io"
	GroupVersion = Group + "/v1alpha1"
	Kind         = "NkpConfiguration"
)

// KubeProxyGroup is the group of kube-proxy's configuration.
const KubeProxyGroup = v1alpha1.GroupName

// NkpConfiguration holds the settings that kube-proxy does not have. Every field stands for a flag of "nkp
// run", which wins if it is given; a field that is left out leaves the flag's default.
type NkpConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// Data plane: auto, ovs, iptables, nftables or windows. auto is ovs where the switch's database answers
	// and has the bridge, else nftables or iptables; on Windows windows.
	Mode string `json:"mode,omitempty" flag:"mode"`
	// Who serves the node's own processes, and what arrives outside the bridge: auto, ovs, iptables, nftables
	// or off.
	HostTraffic string `json:"hostTraffic,omitempty" flag:"host-traffic"`
	// File or directory of Kubernetes YAML or JSON that takes the place of an API server.
	Manifests string `json:"manifests,omitempty" flag:"manifests"`
	// Serve only Services whose label service.kubernetes.io/service-proxy-name has this value.
	ServiceProxyName string `json:"serviceProxyName,omitempty" flag:"service-proxy-name"`
	// Address ranges of Services; by default those of the ServiceCIDR objects. Neither counts with
	// serviceProxyName.
	ServiceCIDRs []string `json:"serviceCIDRs,omitempty" flag:"service-cidr"`
	// Services, as NAMESPACE/NAME, that another program of the node serves: none of their addresses is served
	// or refused.
	SkipServices []string `json:"skipServices,omitempty" flag:"skip-services"`
	// Serve the addresses of load balancers in the node; false leaves them to the load balancer, for example
	// to the servicelb of K3s.
	LoadBalancerAddresses *bool `json:"loadBalancerAddresses,omitempty" flag:"load-balancer-addresses"`
	// Answer pings of cluster IPs, external IPs and load balancer addresses that have an endpoint for the
	// client.
	AnswerPing *bool `json:"answerPing,omitempty" flag:"answer-ping"`
	// Flows, rules or elements that one Service may take, and each of its ports in one family an eighth of
	// it; a larger Service is not served. 0: no limit.
	CostLimit *int64 `json:"costLimit,omitempty" flag:"cost-limit"`
	// The same for all Services of a namespace together; the newest that do not fit are not served.
	CostLimitNamespace *int64 `json:"costLimitNamespace,omitempty" flag:"cost-limit-namespace"`
	// The same for all Services of the node; the newest of the largest namespace that do not fit are not
	// served.
	CostLimitNode *int64 `json:"costLimitNode,omitempty" flag:"cost-limit-node"`
	// Socket on which the agent answers nkp status, diff, services and trace.
	Socket string `json:"socket,omitempty" flag:"socket"`
	// /healthz answers 503 while packets of nkp's own do not pass the data path, unless a conntrack table is
	// full.
	HealthzDataPath *bool `json:"healthzDataPath,omitempty" flag:"healthz-data-path"`
	// Least level that is logged: debug, info, warn or error.
	LogLevel string `json:"logLevel,omitempty" flag:"log-level"`

	Metrics  MetricsConfiguration  `json:"metrics,omitzero"`
	Node     NodeConfiguration     `json:"node,omitzero"`
	OVS      OVSConfiguration      `json:"ovs,omitzero"`
	IPTables IPTablesConfiguration `json:"iptables,omitzero"`
	NFTables NFTablesConfiguration `json:"nftables,omitzero"`
	Windows  WindowsConfiguration  `json:"windows,omitzero"`
}

// MetricsConfiguration says what is measured for each Service and who may read it; the address is in the
// KubeProxyConfiguration.
type MetricsConfiguration struct {
	// Serve the metrics over HTTPS, and only to clients that the API server accepts and allows the path.
	Authorization *bool `json:"authorization,omitempty" flag:"metrics-authorization"`
	// PEM file of the certificate for HTTPS; by default self-signed with authorization, else plain HTTP.
	TLSCertFile string `json:"tlsCertFile,omitempty" flag:"metrics-tls-cert-file"`
	// PEM file of its private key.
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile,omitempty" flag:"metrics-tls-private-key-file"`
	// Serve connections, packets and bytes of every Service port as metrics.
	Services *bool `json:"services,omitempty" flag:"service-metrics"`
	// Service ports that are served by name; the others are summed.
	ServicesLimit *int64 `json:"servicesLimit,omitempty" flag:"service-metrics-limit"`
}

// NodeConfiguration says what the API server does not tell about this node.
type NodeConfiguration struct {
	// Addresses of the node; by default those of its Node object.
	IPs []string `json:"ips,omitempty" flag:"node-ip"`
	// MAC of the bridge's LOCAL port, if the node's address is there; by default from the switch's database.
	MAC string `json:"mac,omitempty" flag:"node-mac"`
	// MAC of the router behind the uplink; by default the next hop of the bridge's default route.
	GatewayMAC string `json:"gatewayMAC,omitempty" flag:"gateway-mac"`
	// Port that leads out of the node, by name or OpenFlow number; by default port 1.
	UplinkPort string `json:"uplinkPort,omitempty" flag:"uplink-port"`
	// JSON file of pods on the bridge, where the switch's database does not tell them.
	PortsFile string `json:"portsFile,omitempty" flag:"ports"`
}

// OVSConfiguration is about the switch and what nkp does there.
type OVSConfiguration struct {
	// Database of Open vSwitch: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT.
	Database string `json:"database,omitempty" flag:"ovsdb"`
	// Bridge to program.
	Bridge string `json:"bridge,omitempty" flag:"bridge"`
	// OpenFlow target; by default BRIDGE.mgmt beside the database's socket.
	OpenFlow string `json:"openflow,omitempty" flag:"openflow"`
	// Enable OpenFlow15 on the bridge if it is not.
	ConfigureBridge *bool `json:"configureBridge,omitempty" flag:"configure-bridge"`
	// How long to wait for the bridge at the start.
	Wait *metav1.Duration `json:"wait,omitempty" flag:"ovs-wait"`
	// How often the whole switch is read back and compared.
	AuditPeriod *metav1.Duration `json:"auditPeriod,omitempty" flag:"audit-period"`
	// Start where flows of others use conntrack on packets that nkp passes on: policies there see the client
	// and the endpoint on the way there, and the Service and the client on the way back.
	AllowStatefulPolicies *bool `json:"allowStatefulPolicies,omitempty" flag:"allow-stateful-policies"`
	// Service packets to pods on this bridge: auto, on (straight) or off (through the gateway).
	LocalDelivery string `json:"localDelivery,omitempty" flag:"local-delivery"`
	// Count connections, packets and bytes of every Service port on the bridge, by three flows each.
	ServiceCounters *bool `json:"serviceCounters,omitempty" flag:"service-counters"`
	// Whether direct connections to endpoints are tracked, so that a client port may be used both through a
	// Service and directly: true or false. Left out: true, unless this Open vSwitch can crash by it.
	PortReuseGuards *bool `json:"portReuseGuards,omitempty" flag:"port-reuse-guards"`
	// Packets per second that may be refused with an answer, and pings that may be answered with answerPing;
	// the rest are dropped.
	RejectRate *int64 `json:"rejectRate,omitempty" flag:"reject-rate"`
	// Clients that session affinity remembers of each Service port on the bridge; further ones get an
	// endpoint by the hash of their address.
	AffinityLimit *int64 `json:"affinityLimit,omitempty" flag:"affinity-limit"`
	// Clients that session affinity remembers of all Service ports on the bridge together; each takes about 1
	// kB of ovs-vswitchd's memory.
	AffinityLimitNode *int64 `json:"affinityLimitNode,omitempty" flag:"affinity-limit-node"`
	// Addresses, one of each family, that stand for a client which is its own endpoint; they must be free on
	// the bridge.
	HairpinIPs []string `json:"hairpinIPs,omitempty" flag:"hairpin-ip"`

	TLS    TLSConfiguration    `json:"tls,omitzero"`
	Layout LayoutConfiguration `json:"layout,omitzero"`
}

// TLSConfiguration is for ssl: targets.
type TLSConfiguration struct {
	// PEM file of the CA that vouches for the switch.
	CA string `json:"ca,omitempty" flag:"ca-cert"`
	// PEM file of nkp's certificate.
	Certificate string `json:"certificate,omitempty" flag:"certificate"`
	// PEM file of its private key.
	PrivateKey string `json:"privateKey,omitempty" flag:"private-key"`
	// Accept any name in the switch's certificate: those of ovs-pki bear no host name.
	AnyName *bool `json:"anyName,omitempty" flag:"any-certificate-name"`
}

// LayoutConfiguration says what nkp takes on the bridge, so that others can share it.
type LayoutConfiguration struct {
	// Added to every table number.
	TableBase *int64 `json:"tableBase,omitempty" flag:"table-base"`
	// Table where packets go on after nkp; -1: to the flows of others in table 0.
	NextTable *int64 `json:"nextTable,omitempty" flag:"next-table"`
	// Register (4-15) whose highest bit marks packets that nkp has passed on to the flows of others.
	ExitRegister *int64 `json:"exitRegister,omitempty" flag:"exit-register"`
	// Upper 24 bits of nkp's cookies, in quotes: decimal or hexadecimal.
	CookiePrefix string `json:"cookiePrefix,omitempty" flag:"cookie-prefix"`
	// First of nkp's 2^28 group ids, in quotes: decimal or hexadecimal; a multiple of 2^28.
	GroupBase string `json:"groupBase,omitempty" flag:"group-base"`
	// Id of the meter on rejects; those of pods are numbered after it.
	Meter *int64 `json:"meter,omitempty" flag:"meter"`
	// Conntrack zone of destination NAT.
	ZoneDNAT *int64 `json:"zoneDNAT,omitempty" flag:"zone-dnat"`
	// Conntrack zone of source NAT.
	ZoneSNAT *int64 `json:"zoneSNAT,omitempty" flag:"zone-snat"`
}

// IPTablesConfiguration is about the iptables data plane; the rest of it is in the KubeProxyConfiguration.
type IPTablesConfiguration struct {
	// nf_tables or legacy; by default the one that the rest of the node uses.
	Backend string `json:"backend,omitempty" flag:"iptables-backend"`
}

// NFTablesConfiguration is about the nftables data plane; the rest of it is in the KubeProxyConfiguration.
type NFTablesConfiguration struct {
	// Count packets and bytes of every Service port, which takes time for each packet.
	ServiceCounters bool `json:"serviceCounters,omitempty" flag:"nftables-service-counters"`
	// Devices whose packets of established connections through Services bypass all rules of the node, network
	// policies included; NAME* matches names that begin with NAME.
	FlowtableDevices []string `json:"flowtableDevices,omitempty" flag:"nftables-flowtable-devices"`
}

// WindowsConfiguration is about the Windows data plane; the rest of it is in the KubeProxyConfiguration.
type WindowsConfiguration struct {
	// Where nkp remembers which HNS objects are its own.
	StateFile string `json:"stateFile,omitempty" flag:"hns-state-file"`
	// Whether nkp, when it starts, deletes the load balancers that kube-proxy left in HNS for Services that
	// are gone.
	TakeOver bool `json:"takeOver,omitempty" flag:"hns-take-over"`
}
