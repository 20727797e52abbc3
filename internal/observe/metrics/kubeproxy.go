package metrics

import "github.com/prometheus/client_golang/prometheus"

// kube-proxy's buckets (Kubernetes 1.37, pkg/proxy/metrics).
var (
	syncBuckets        = prometheus.ExponentialBuckets(0.001, 2, 15)
	programmingBuckets = func() []float64 {
		b := append([]float64{0}, prometheus.LinearBuckets(0.25, 0.25, 2)...) // kube-proxy has the 0, too
		b = append(b, prometheus.LinearBuckets(1, 1, 59)...)
		b = append(b, prometheus.LinearBuckets(60, 5, 12)...)
		return append(b, prometheus.LinearBuckets(120, 30, 7)...)
	}()
)

const ipFamily = "ip_family"

// atLoopback6 is where NodePorts are served at [::1].
const atLoopback6 = "`--nodeport-addresses` names ::1, and nkp serves the node's own traffic"

// Metrics that kube-proxy has too, under its names. A sync is one transaction of the data plane: in Open
// vSwitch an atomic bundle, which counts for each family that it touches; in iptables everything that one
// batch of changes led to; in HNS one reconciliation.
var (
	syncDuration = define(Histogram, "kubeproxy_sync_proxy_rules_duration_seconds",
		"SyncProxyRules latency in seconds: one transaction of the data plane", ipFamily).with(syncBuckets).
		from("IPv4", "IPv6")
	syncFullDuration = define(Histogram, "kubeproxy_sync_full_proxy_rules_duration_seconds",
		"SyncProxyRules latency in seconds for full resyncs: after everything was read back", ipFamily).
		with(syncBuckets).in(OVS, IPTables, NFTables).from("IPv4", "IPv6")
	syncPartialDuration = define(Histogram, "kubeproxy_sync_partial_proxy_rules_duration_seconds",
		"SyncProxyRules latency in seconds for partial resyncs: of what changed alone", ipFamily).
		with(syncBuckets).in(OVS, IPTables, NFTables).from("IPv4", "IPv6")
	syncLast = define(Gauge, "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		"The last time proxy rules were successfully synced", ipFamily)
	lastQueued = define(Gauge, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
		"The last time a sync of proxy rules was queued", ipFamily)
	programmingDuration = define(Histogram, "kubeproxy_network_programming_duration_seconds",
		"In Cluster Network Programming Latency in seconds: from what made endpoints change (the "+
			"EndpointSlice's annotation endpoints.kubernetes.io/last-change-trigger-time) until the "+
			"change is in force", ipFamily).
		with(programmingBuckets).from("IPv4", "IPv6")
	endpointChangesPending = define(Gauge, "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
		"Pending proxy rules Endpoint changes").collected()
	endpointChanges = define(Counter, "kubeproxy_sync_proxy_rules_endpoint_changes_total",
		"Cumulative proxy rules Endpoint changes").from("")
	serviceChangesPending = define(Gauge, "kubeproxy_sync_proxy_rules_service_changes_pending",
		"Pending proxy rules Service changes").collected()
	serviceChanges = define(Counter, "kubeproxy_sync_proxy_rules_service_changes_total",
		"Cumulative proxy rules Service changes").from("")
	NoLocalEndpoints = define(Gauge, "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Number of services with a Local traffic policy and no endpoints", "traffic_policy", ipFamily).
		collected()
	healthzTotal = define(Counter, "kubeproxy_proxy_healthz_total",
		"Cumulative proxy healthz HTTP status", "code").from("200", "503")
	livezTotal = define(Counter, "kubeproxy_proxy_livez_total",
		"Cumulative proxy livez HTTP status", "code").from("200", "503")

	// The metrics below are about iptables transactions, also those alongside the bridge.
	iptablesFailures = define(Counter, "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
		"Cumulative proxy iptables restore failures", ipFamily).in(OVS, IPTables).from("IPv4", "IPv6")
	iptablesPartialFailures = define(Counter,
		"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
		"Cumulative proxy iptables partial restore failures: a transaction with changes of Services was "+
			"refused", ipFamily).
		in(OVS, IPTables).from("IPv4", "IPv6")
	iptablesLast = define(Gauge, "kubeproxy_sync_proxy_rules_iptables_last",
		"Number of iptables rules written by kube-proxy in last sync: in the last transaction with that "+
			"table", "table", ipFamily).
		in(OVS, IPTables).only("iptables works: alone, or beside the bridge")
	LocalhostNodePorts = define(Counter, "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"Number of packets accepted on nodeports of loopback interface: one for each connection").
		in(OVS, IPTables).
		only("iptables works: alone, or beside the bridge; NodePorts are served at 127.0.0.0/8").collected()
	InvalidDropped = define(Counter, "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"packets dropped by iptables to work around conntrack problems: forwarded packets in conntrack "+
			"state INVALID").
		in(OVS, IPTables).
		only("iptables works: alone, or beside the bridge; `--conntrack-tcp-be-liberal` is not set").
		collected()
	LocalhostListeners = define(Gauge, "kubeproxy_nftables_localhost_nodeport_listeners",
		"Number of active localhost NodePort userspace proxy listeners: at [::1], with iptables, too",
		ipFamily).
		in(OVS, IPTables, NFTables).only(atLoopback6).collected()
	LocalhostFailures = define(Counter,
		"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
		"Number of localhost NodePort userspace proxy listener creation failures: another process has the "+
			"port, as a rule", ipFamily).
		in(OVS, IPTables, NFTables).only(atLoopback6).collected()
	nftablesFailures = define(Counter, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
		"Cumulative proxy nftables sync failures: transactions that were refused or failed", ipFamily).
		in(NFTables).from("IPv4", "IPv6")
	// HNSLoadBalancerFailures are those of load balancers in HNS, by what was tried.
	HNSLoadBalancerFailures = map[string]*Definition{"create": lbFailures("create"),
		"update": lbFailures("update"), "delete": lbFailures("delete")}

	conntrackDuration = define(Histogram, "kubeproxy_conntrack_reconciler_sync_duration_seconds",
		"ReconcileConntrackFlowsLatency latency in seconds: one scan for UDP connections to endpoints that "+
			"are gone, TCP connections to removed endpoints of Services that close them and, on iptables "+
			"and nftables, TCP connections that are older than their Service",
		ipFamily).with(syncBuckets).
		in(OVS, IPTables, NFTables).from("IPv4", "IPv6")
	conntrackDeleted = define(Counter, "kubeproxy_conntrack_reconciler_deleted_entries_total",
		"Cumulative conntrack flows deleted by conntrack reconciler; not counted are those that Open "+
			"vSwitch's userspace datapath deletes by up to three filters, because it does not report "+
			"their number", ipFamily).
		in(OVS, IPTables, NFTables).from("IPv4", "IPv6")
)

func lbFailures(operation string) *Definition {
	return define(Counter, "kubeproxy_sync_proxy_rules_winkernel_lb_"+operation+"_failures_total",
		"Cumulative proxy winkernel lb "+operation+" failures: attempts at a load balancer in HNS",
		ipFamily, "lb_type", "error").
		in(Windows).only("one failed so").collected()
}
