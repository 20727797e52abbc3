package command

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/config"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/sysctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/pipeline"
)

const (
	defaultOVSDB  = "unix:/var/run/openvswitch/db.sock"
	defaultBridge = "br-int"
)

// settings are the settings of "nkp run"; resolve completes agent.Settings. Other commands offer some of the
// flags.
type settings struct {
	agent.Settings
	manifests  string
	kubeconfig string
	master     string
	mode       mode.Mode
	portsFile  string
	nodePorts  string
	servesLBs  bool // not Options.IgnoreLoadBalancers
	podBridge  string
	podPrefix  string
	ncpINI     string // --ncp-ini
	dir        string // where the package's configuration is looked for; "": nowhere
	api        apiserver.Options
	gates      map[string]bool
	process    process
	cfg        configuration
	flags      pflag.FlagSet  // all of run's
	waiting    *agent.Waiting // while run chooses the data plane
	recentLog  *agent.RecentLog
}

// newSettings returns the defaults, with the flags of run that change them.
func newSettings() *settings {
	s := &settings{}
	s.Layout = pipeline.DefaultLayout()
	s.HairpinIPs = slices.Clone(bridge.DefaultHairpinIPs)
	s.Fallback = fallback.DefaultOptions()
	s.Fallback.Canary = true
	s.AuditPeriod, s.CountPeriod = time.Minute, 5*time.Second
	s.PrimaryIP = netip.IPv4Unspecified()
	s.Socket = defaultSocket

	s.define(groupSource, s.sourceFlags)
	s.define(groupNode, s.nodeFlags)
	s.define(groupServing, s.servingFlags)
	s.define(groupSwitch, s.switchFlags)
	s.define(groupLayout, s.layoutFlags)
	s.define(groupIPTables, s.iptablesFlags)
	s.define(groupWindows, s.windowsFlags)
	s.define(groupKernel, s.conntrackFlags)
	s.define(groupServers, s.serverFlags)
	s.define(groupProcess, s.processFlags)
	s.define(groupProcess, unusedFlags) // last, because it defines those that nothing else does
	return s
}

// define defines flags of a group.
func (s *settings) define(group string, flags func(*pflag.FlagSet)) {
	defer inGroup(&s.flags, group)()
	flags(&s.flags)
}

// runFlags gives a command all flags of run: nkp's own and every flag of kube-proxy's.
func (s *settings) runFlags(f *pflag.FlagSet) {
	s.cfg.isRun = true
	f.AddFlagSet(&s.flags)
}

// use gives a command some flags of run, by their names or groups.
func (s *settings) use(f *pflag.FlagSet, namesOrGroups ...string) {
	s.flags.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(namesOrGroups, flag.Name) ||
			slices.Contains(namesOrGroups, flag.Annotations[groupKey][0]) {
			f.AddFlag(flag)
		}
	})
}

// usePlanning gives a command the flags on which depends what is programmed.
func (s *settings) usePlanning(f *pflag.FlagSet) {
	s.use(f, "config", "ncp-ini", "kubeconfig", "master", "manifests",
		groupNode, groupServing, groupIPTables, groupWindows, groupLayout, groupSwitch)
}

// switchFlags defines the flags for the switch and its database.
func (s *settings) switchFlags(f *pflag.FlagSet) {
	f.StringVar(&s.OVSDB, "ovsdb", defaultOVSDB,
		"database of Open vSwitch: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT")
	f.StringVar(&s.Bridge, "bridge", defaultBridge, "bridge to program")
	f.StringVar(&s.TLS.CA, "ca-cert", "", "PEM file of the CA that vouches for the switch, for ssl: targets")
	f.StringVar(&s.TLS.Cert, "certificate", "", "PEM file of nkp's certificate, for ssl: targets")
	f.StringVar(&s.TLS.Key, "private-key", "", "PEM file of its private key")
	f.BoolVar(&s.TLS.AnyName, "any-certificate-name", false,
		"accept any name in the switch's certificate: those of ovs-pki bear no host name")
	f.StringVar(&s.OpenFlow, "openflow", "",
		"OpenFlow target: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT (default: BRIDGE.mgmt beside the "+
			"database's socket)")
}

// sourceFlags defines the flags for the source of Services, and for requests to the API server with
// kube-proxy's names and defaults.
func (s *settings) sourceFlags(f *pflag.FlagSet) {
	f.StringVar(&s.cfg.path, "config", "",
		"file with kube-proxy's KubeProxyConfiguration, an NkpConfiguration, or both; run follows changes "+
			"to it")
	f.StringVar(&s.ncpINI, "ncp-ini", "",
		"ncp.ini of the NSX Container Plugin: bridge and uplink of [nsx_node_agent] or [nsx_kube_proxy], "+
			"API server and credentials of [k8s], unless flags or --config name them")
	f.StringVar(&s.kubeconfig, "kubeconfig", "",
		"file that says how to reach the API server (default: the pod's service account, where there is one)")
	f.StringVar(&s.master, "master", "", "URL of the API server; overrides the one in --kubeconfig")
	f.StringVar(&s.manifests, "manifests", "",
		"instead of an API server: file or directory of Kubernetes YAML or JSON with Services, "+
			"EndpointSlices, Nodes, ServiceCIDRs")
	f.Float32Var(&s.api.QPS, "kube-api-qps", apiserver.DefaultQPS, "requests per second to the API server")
	f.IntVar(&s.api.Burst, "kube-api-burst", apiserver.DefaultBurst,
		"requests to the API server that may come at once")
	f.StringVar(&s.api.ContentType, "kube-api-content-type", apiserver.DefaultContentType,
		"encoding of what is sent to the API server")
}

// serverFlags defines the flags for the health check servers and for the metrics, with kube-proxy's names and
// defaults where it has them.
func (s *settings) serverFlags(f *pflag.FlagSet) {
	f.StringVar(&s.HealthzAddr, "healthz-bind-address", "0.0.0.0:10256",
		"address and port of /healthz and /livez; empty: none, port 0: any that is free")
	f.BoolVar(&s.HealthzDataPath, "healthz-data-path", false,
		"/healthz answers 503 while packets of nkp's own do not pass the data path (nkp status: data path), "+
			"unless a conntrack table is full")
	f.BoolVar(&s.BindHardFail, "bind-address-hard-fail", false,
		"end with an error if an address cannot be listened on, instead of trying again")
	m := &s.Metrics
	f.StringVar(&m.Addr, "metrics-bind-address", "127.0.0.1:10249",
		"address and port of /metrics, /proxyMode and /configz (a port left out: 10249); empty: none, port "+
			"0: any that is free")
	f.BoolVar(&m.Authorization, "metrics-authorization", false,
		"serve --metrics-bind-address over HTTPS, and only to clients whose bearer token the API server "+
			"accepts (TokenReview) and allows the path (SubjectAccessReview); needs the ClusterRole "+
			"system:auth-delegator")
	f.StringVar(&m.CertFile, "metrics-tls-cert-file", "",
		"PEM file of the certificate with which --metrics-bind-address is served over HTTPS, read again "+
			"every minute (default: self-signed with --metrics-authorization, else plain HTTP)")
	f.StringVar(&m.KeyFile, "metrics-tls-private-key-file", "", "PEM file of its private key")
	f.BoolVar(&m.Profiling, "profiling", false,
		"serve profiles at /debug/pprof, and change the log level at /debug/flags/v, on "+
			"--metrics-bind-address")
	f.BoolVar(&m.Services, "service-metrics", false,
		"serve connections, packets and bytes of every Service port as metrics")
	f.IntVar(&m.ServiceLimit, "service-metrics-limit", 1000,
		"Service ports that --service-metrics serves by name; the others are summed")
}

// conntrackFlags defines kube-proxy's conntrack flags. They apply if the kernel tracks the connections of
// Services; 0 leaves a setting alone.
func (s *settings) conntrackFlags(f *pflag.FlagSet) {
	c := sysctl.Defaults()
	f.IntVar(&s.Conntrack.MaxPerCore, "conntrack-max-per-core", c.MaxPerCore,
		"tracked connections for each CPU; 0: leave the limit")
	f.IntVar(&s.Conntrack.Min, "conntrack-min", c.Min,
		"minimum number of tracked connections, regardless of the CPUs")
	f.DurationVar(&s.Conntrack.TCPEstablished, "conntrack-tcp-timeout-established",
		c.TCPEstablished, "timeout of idle established TCP connections; 0: leave it")
	f.DurationVar(&s.Conntrack.TCPCloseWait, "conntrack-tcp-timeout-close-wait",
		c.TCPCloseWait, "timeout of TCP connections in CLOSE_WAIT; 0: leave it")
	f.BoolVar(&s.Conntrack.TCPBeLiberal, "conntrack-tcp-be-liberal", c.TCPBeLiberal,
		"accept TCP packets out of the window")
	f.DurationVar(&s.Conntrack.UDP, "conntrack-udp-timeout", c.UDP,
		"timeout of unanswered UDP connections; 0: leave it")
	f.DurationVar(&s.Conntrack.UDPStream, "conntrack-udp-timeout-stream", c.UDPStream,
		"timeout of answered UDP connections; 0: leave it")
}

// iptablesFlags are kube-proxy's.
func (s *settings) iptablesFlags(f *pflag.FlagSet) {
	o := &s.Fallback
	f.IntVar(&o.MasqueradeBit, "iptables-masquerade-bit", o.MasqueradeBit,
		"bit of the packet mark that asks for masquerading, 0 to 31")
	f.BoolVar(&o.LocalhostNodePorts, "iptables-localhost-nodeports", o.LocalhostNodePorts,
		"serve NodePorts on IPv4 loopback addresses too")
	f.DurationVar(&o.SyncPeriod, "iptables-sync-period", o.SyncPeriod,
		"how often to check that the rules (on Windows the load balancers) are still installed")
	f.DurationVar(&o.MinSyncPeriod, "iptables-min-sync-period", o.MinSyncPeriod,
		"minimum time between two transactions; the first after a pause is sent at once (on Windows 0 is 1s)")
	f.BoolVar(&s.NFTables.CountTraffic, "nftables-service-counters", false,
		"count packets and bytes of every Service port in nftables, which takes 0.7 µs of each packet (nkp "+
			"services)")
	f.Var(devicesFlag(&s.NFTables.FlowtableDevices), "nftables-flowtable-devices",
		"devices whose packets of established connections through Services bypass all rules of the node, "+
			"network policies included (a flowtable of nftables); NAME* matches names that begin with "+
			"NAME. List those of the pods and the uplinks (default: none)")
	f.StringVar(&s.IPTablesBackend, "iptables-backend", "",
		"nf_tables or legacy (default: the one that the rest of the node uses)")
}

// windowsFlags are kube-proxy's.
func (s *settings) windowsFlags(f *pflag.FlagSet) {
	o := &s.Windows
	f.StringVar(&o.NetworkName, "network-name", "",
		"HNS network of the pods (default: the environment variable KUBE_NETWORK)")
	f.Var(addrFlag(&o.SourceVIP), "source-vip",
		"source address of load-balanced connections (default: on overlay networks that of the CNI "+
			"plugin's endpoint, on others HNS chooses)")
	f.BoolVar(&o.EnableDSR, "enable-dsr", false, "let ClusterIPs answer directly (Direct Server Return)")
	f.StringVar(&o.RootEndpointName, "root-hnsendpoint-name", "", "HNS endpoint of the host (default: cbr0)")
	f.BoolVar(&o.ForwardHealthCheckVIP, "forward-healthcheck-vip", false,
		"forward health checks of load balancers to --root-hnsendpoint-name")
	f.StringVar(&o.StateFile, "hns-state-file", "",
		`where nkp remembers which HNS objects are its own (default: %ProgramData%\nkp\hns.json)`)
	f.BoolVar(&o.TakeOver, "hns-take-over", false,
		"when nkp starts, delete the load balancers that kube-proxy left in HNS for Services that are "+
			"gone; nkp diff --hns-take-over lists them")
}

// layoutFlags defines the flags for the tables, ids and zones that nkp uses on the bridge.
func (s *settings) layoutFlags(f *pflag.FlagSet) {
	f.Uint8Var(&s.Layout.TableBase, "table-base", s.Layout.TableBase, "added to every table number")
	f.IntVar(&s.Layout.NextTable, "next-table", s.Layout.NextTable,
		"table where packets go on after nkp; -1: to the flows of others in table 0")
	f.Uint8Var(&s.Layout.ExitRegister, "exit-register", s.Layout.ExitRegister,
		"register (4-15) whose highest bit marks packets that nkp has passed on to the flows of others")
	f.Var(hexFlag(&s.Layout.CookiePrefix), "cookie-prefix", "upper 24 bits of nkp's cookies")
	f.Var(hexFlag(&s.Layout.GroupBase), "group-base", "first of nkp's 2^28 group ids; a multiple of 2^28")
	f.Uint32Var(&s.Layout.MeterID, "meter", s.Layout.MeterID,
		"id of the meter on rejects; those of pods are numbered after it")
	f.Uint16Var(&s.Layout.ZoneDNAT, "zone-dnat", s.Layout.ZoneDNAT, "conntrack zone of destination NAT")
	f.Uint16Var(&s.Layout.ZoneSNAT, "zone-snat", s.Layout.ZoneSNAT, "conntrack zone of source NAT")
}

// nodeFlags defines the flags about the node and the cluster that it is in.
func (s *settings) nodeFlags(f *pflag.FlagSet) {
	f.StringVar(&s.NodeName, "hostname-override", "",
		"name of this node's Node object (default: the host name)")
	f.StringVar(&s.ServiceProxyName, "service-proxy-name", "",
		"serve only Services whose label service.kubernetes.io/service-proxy-name has this value")
	f.StringVar(&s.Uplink, "uplink-port", "",
		"port that leads out of the node, by name or OpenFlow number (default: port 1)")

	f.Var(addrFlag(&s.PrimaryIP), "bind-address",
		"address of this node in place of its Node object's of that family; nothing listens there (0.0.0.0 "+
			"and ::: the Node object's)")
	f.Var(addrsFlag(&s.NodeIPs), "node-ip",
		"addresses of this node, comma-separated (default: those of its Node object)")
	f.Var(macFlag(&s.NodeMAC), "node-mac",
		"MAC of the bridge's LOCAL port, if the node's address is there (default: from the database); on "+
			"Windows of the interface that has the node's address")
	f.Var(macFlag(&s.GatewayMAC), "gateway-mac",
		"MAC of the router behind the uplink (default: the next hop of the bridge's default route)")

	f.Var(addrsFlag(&s.HairpinIPs), "hairpin-ip",
		"addresses, one of each family, that stand for a client which is its own endpoint; they must be "+
			"free on the bridge")

	f.Var(prefixesFlag(&s.DetectLocal.CIDRs), "cluster-cidr",
		"pod address ranges of the cluster, comma-separated: clients in them are pods")
	f.StringVar((*string)(&s.DetectLocal.Mode), "detect-local-mode", string(k8s.DetectByClusterCIDR),
		"how pods are recognized: ClusterCIDR, NodeCIDR (the node's spec.podCIDRs), BridgeInterface (every "+
			"port but the uplink) or InterfaceNamePrefix")
	f.StringVar(&s.podBridge, "pod-bridge-interface", "",
		"bridge of the pods, for --detect-local-mode BridgeInterface: the one of --bridge")
	f.StringVar(&s.podPrefix, "pod-interface-name-prefix", "",
		"name prefix of the pods' interfaces, for --detect-local-mode InterfaceNamePrefix")

	f.Var(prefixesFlag(&s.ServiceCIDRs), "service-cidr",
		"Service address ranges, comma-separated (default: ServiceCIDR objects; neither counts with "+
			"--service-proxy-name)")

	f.StringVar(&s.portsFile, "ports", "",
		"JSON file of pods on the bridge: {\"10.0.0.11\": {\"ofport\": 11, \"mac\": \"02:00:00:00:00:11\"}}")
}

// servingFlags defines the flags about how Services are served.
func (s *settings) servingFlags(f *pflag.FlagSet) {
	f.StringVar((*string)(&s.mode), "mode", string(mode.Auto),
		"data plane: ovs, iptables, nftables, windows, or auto (ovs where its database answers and has the "+
			"bridge, else nftables where the kernel has what it needs and iptables drops no Service "+
			"traffic, else iptables; on Windows windows)")
	f.StringVar(&s.nodePorts, "nodeport-addresses", "",
		"node addresses that serve NodePorts, comma-separated: ranges, \"primary\" (the addresses in the "+
			"Node object), \"localhost\" and \"all\" (default: all). A range with ::1, such as "+
			"\"localhost\", has nkp forward TCP there itself")
	f.StringVar((*string)(&s.HostTraffic), "host-traffic", string(bridge.HostAuto),
		"who serves the node's own processes and what arrives outside the bridge: ovs, iptables, nftables, "+
			"off, or auto (ovs where the node's address is on the bridge, and nftables for the rest; "+
			"iptables instead of nftables where iptables drops what only it can accept, or the kernel "+
			"lacks something)")

	f.Var((*config.Gates)(&s.gates), "feature-gates",
		"kube-proxy's feature gates, comma-separated NAME=true|false; nkp supports "+
			config.GateExternalIPs+" (default true), and names the others in a warning")
	f.BoolVar(&s.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")

	f.StringVar((*string)(&s.LocalDelivery), "local-delivery", string(bridge.DeliverAuto),
		"Service packets to pods on this bridge: on (straight), off (through the gateway), auto (straight, "+
			"unless policy sits in the gateway)")

	f.Uint32Var(&s.RejectRate, "reject-rate", pipeline.DefaultRejectRate,
		"packets per second that may be refused with an answer, and pings that may be answered with "+
			"--answer-ping; the rest are dropped")
	f.Var(guardsFlag(&s.Guards), "port-reuse-guards",
		"track direct connections to endpoints, so that a client port may be used both through a Service "+
			"and directly: true, false, or auto (true unless this Open vSwitch can crash by it, as Debian "+
			"12's userspace datapath can)")
	f.Lookup("port-reuse-guards").NoOptDefVal = string(bridge.GuardsOn)

	f.Var(servicesFlag(&s.SkipServices), "skip-services",
		"Services, comma-separated, that another program of the node serves, for example "+
			"kube-system/kube-dns beside NodeLocal DNSCache: none of their addresses is served or refused")
	f.BoolVar(&s.servesLBs, "load-balancer-addresses", true,
		"serve the addresses of load balancers (status.loadBalancer) in the node; false: leave them to the "+
			"load balancer, for example to the servicelb of K3s, which sets no ipMode")

	f.BoolVar(&s.AnswerPing, "answer-ping", false,
		"answer pings of cluster IPs, external IPs and load balancer addresses that have an endpoint for "+
			"the client")

	f.Uint32Var(&s.AffinityLimit, "affinity-limit", pipeline.DefaultAffinityLimit,
		"clients that session affinity remembers of each Service port on the bridge; further ones get an "+
			"endpoint by the hash of their address")
	f.Uint32Var(&s.AffinityNodeLimit, "affinity-limit-node", bridge.DefaultAffinityNodeLimit,
		"clients that session affinity remembers of all Service ports on the bridge together; each takes "+
			"about 1 kB of ovs-vswitchd's memory")

	f.IntVar(&s.Limits.Service, "cost-limit", k8s.DefaultLimits.Service,
		"flows, rules or elements that one Service may take, and each of its ports in one family an eighth "+
			"of it; a larger Service is not served, and named in a warning and an Event (0: no limit)")
	f.IntVar(&s.Limits.Namespace, "cost-limit-namespace", k8s.DefaultLimits.Namespace,
		"the same for all Services of a namespace together; the newest that do not fit are not served")
	f.IntVar(&s.Limits.Node, "cost-limit-node", k8s.DefaultLimits.Node,
		"the same for all Services of the node; the newest of the largest namespace that do not fit are "+
			"not served")

	f.BoolVar(&s.Counters, "service-counters", true,
		"count connections, packets and bytes of every Service port on the bridge, by three flows each "+
			"(nkp services)")
}

// resolve checks what the flags cannot check by themselves and fills in defaults.
func (s *settings) resolve() error {
	err := cmp.Or(checkEnum("mode", string(s.mode)), checkEnum("local-delivery", string(s.LocalDelivery)),
		checkEnum("host-traffic", cmp.Or(string(s.HostTraffic), string(bridge.HostAuto))))
	if err != nil {
		return err
	}

	if err := s.resolveAddresses(); err != nil {
		return err
	}
	if err := s.resolveMetrics(); err != nil {
		return err
	}

	if err := s.Layout.Validate(); err != nil {
		return usageError("%w", err)
	}
	if s.RejectRate == 0 {
		return usageError("--reject-rate must be at least 1")
	}
	if s.AffinityLimit == 0 || s.AffinityNodeLimit == 0 {
		return usageError("--affinity-limit and --affinity-limit-node must be at least 1")
	}
	if min(s.Limits.Service, s.Limits.Namespace, s.Limits.Node) < 0 {
		return usageError("--cost-limit, --cost-limit-namespace and --cost-limit-node must be at least 0")
	}

	if s.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("cannot determine the host name (%w); set --hostname-override", err)
		}
		s.NodeName = strings.ToLower(strings.TrimSpace(name))
	}

	if s.portsFile != "" {
		ports, err := bridge.LoadPorts(s.portsFile)
		if err != nil {
			return usageError("--ports %w", err)
		}
		s.Ports = ports
	}

	return nil
}

// resolveNodePorts resolves --nodeport-addresses: ranges and keywords of kube-proxy.
func (s *settings) resolveNodePorts() error {
	s.NodePortPrimary, s.NodePortAddresses = false, nil
	for text := range strings.SplitSeq(s.nodePorts, ",") {
		ranges := text
		switch text {
		case config.NodePortsPrimary:
			s.NodePortPrimary = true
			continue
		case config.NodePortsLocalhost:
			ranges = "127.0.0.0/8,::1/128"
		case config.NodePortsAll:
			ranges = "0.0.0.0/0,::/0"
		}
		list, err := parseList(ranges, parsePrefix)
		if err != nil {
			return usageError("--nodeport-addresses: %w, nor \"primary\", \"localhost\" or \"all\"", err)
		}
		s.NodePortAddresses = append(s.NodePortAddresses, list...)
	}
	return nil
}

// resolveAddresses resolves the flags whose meaning depends on other flags.
func (s *settings) resolveAddresses() error {
	if err := s.resolveNodePorts(); err != nil {
		return err
	}

	switch s.DetectLocal.Mode {
	case k8s.DetectByBridge:
		s.DetectLocal.Interface = s.podBridge
	case k8s.DetectByInterfacePrefix:
		s.DetectLocal.Interface = s.podPrefix
	}

	on, set := s.gates[config.GateExternalIPs]
	s.IgnoreExternalIPs, s.IgnoreLoadBalancers = set && !on, !s.servesLBs

	if err := nftables.Validate(s.NFTables); err != nil {
		return usageError("%w", err)
	}

	if s.HealthzAddr != "" {
		at, err := netip.ParseAddrPort(s.HealthzAddr)
		if err != nil {
			return usageError("--healthz-bind-address %q is not ADDRESS:PORT such as 0.0.0.0:10256",
				s.HealthzAddr)
		}
		s.Windows.HealthzPort = at.Port()
	}

	for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		n := 0
		for _, ip := range s.HairpinIPs {
			if k8s.FamilyOf(ip) == f {
				n++
			}
		}
		if n > 1 {
			return usageError("--hairpin-ip: %d %s addresses; one of each family is enough", n, f)
		}
	}

	return nil
}

// resolveMetrics checks the settings of the metrics and their server.
func (s *settings) resolveMetrics() error {
	m := &s.Metrics
	m.Addr = config.WithPort(m.Addr, config.MetricsPort)
	if m.Addr != "" {
		if _, err := netip.ParseAddrPort(m.Addr); err != nil {
			return usageError("--metrics-bind-address %q is not ADDRESS:PORT such as 127.0.0.1:10249", m.Addr)
		}
	}
	if (m.CertFile == "") != (m.KeyFile == "") {
		return usageError("--metrics-tls-cert-file and --metrics-tls-private-key-file go together")
	}
	if m.ServiceLimit < 0 {
		return usageError("--service-metrics-limit %d must not be below 0", m.ServiceLimit)
	}
	return nil
}
