package metrics

import "github.com/prometheus/client_golang/prometheus"

// Metrics that only nkp has. The exported ones are states, which the agent collects at a scrape.
var (
	buildInfo = define(Gauge, "nkp_build_info",
		"1; the version, the Go version, and the system that it was built for.",
		"version", "goversion", "os", "arch").collected()
	modeInfo = define(Gauge, "nkp_mode_info", "1; the data plane.", "mode").collected()

	SourceSynced = define(Gauge, "nkp_source_synced",
		"Whether the source of Services has delivered its first complete state (1) or not yet (0).").
		collected()
	SourceAnswers = define(Gauge, "nkp_source_answers",
		"Whether the API server answers (1) or not (0); what it said last stays in force.").
		collected().only("Services come from an API server")
	SourceErrors = define(Gauge, "nkp_source_errors",
		"Objects at the source that cannot be used; their last good state stays in force.").collected()
	Warnings = define(Gauge, "nkp_warnings",
		"Problems with Services, EndpointSlices or the node that do not affect the rest (nkp status names "+
			"them).").collected()
	ServicePorts = define(Gauge, "nkp_service_ports", "Service ports to serve.", ipFamily).collected()
	Endpoints    = define(Gauge, "nkp_endpoints",
		"Endpoints in force on this node, each once for every Service port.", ipFamily).collected()

	refusedRequests = define(Counter, "nkp_metrics_refused_requests_total",
		"Requests to --metrics-bind-address that were refused: without an accepted token "+
			"(unauthenticated), not permitted (forbidden), too many from unknown clients (rate_limit), or "+
			"the API server gave no verdict (unavailable).",
		"reason").
		from("unauthenticated", "forbidden", "rate_limit", "unavailable").
		only("`--metrics-authorization` is set")

	LoopStalled = define(Gauge, "nkp_loop_stalled_seconds",
		"How long a loop of nkp's has worked without progress; 0: it waits for something to do. From 120 "+
			"on /livez fails and the service manager's watchdog is not fed.",
		"loop").collected()

	inStep = define(Gauge, "nkp_in_step",
		"Whether the data plane holds all that it should but what is refused (1) or not (0).",
		ipFamily).collected()
	behind = define(Gauge, "nkp_behind_seconds",
		"How long the oldest change has been waiting to be programmed; 0: none waits.", ipFamily).collected()
	change = define(Histogram, "nkp_change_duration_seconds",
		"From the arrival of a change at the data plane until it is in force.", ipFamily).
		with(prometheus.ExponentialBuckets(0.0005, 2, 18)).from("IPv4", "IPv6") // 0.5 ms to 66 s
	Refused = define(Gauge, "nkp_refused_service_ports",
		"Service ports that the data plane refuses; they are tried again.", "plane").collected()
	PendingPorts = define(Gauge, "nkp_pending_service_ports",
		"Service ports that are not as they should be yet.", "plane").in(OVS, IPTables, NFTables).collected().
		only("iptables or nftables works: alone, or beside the bridge")
	Foreign = define(Gauge, "nkp_foreign_flows",
		"Flows of other owners in nkp's own tables, which can keep Service packets from arriving.").in(OVS).
		collected()
	Repairs = define(Counter, "nkp_repairs_total",
		"Times that something else had changed what nkp installed, which was put right.",
		"plane").in(OVS, IPTables, NFTables).collected()
	Conflict = define(Gauge, "nkp_port_conflicts",
		"Processes that listen on the node where a Service is served.").collected()
	Unbound = define(Gauge, "nkp_health_check_node_ports_failed",
		"Health check node ports that cannot be listened on.").collected()

	LocalhostUnserved = define(Gauge, "nkp_localhost_nodeport_unserved",
		"TCP NodePorts with endpoints that nkp does not listen for at [::1], because another process has "+
			"the port or there are too many.").in(OVS, IPTables, NFTables).only(atLoopback6).collected()
	LocalhostOpen = define(Gauge, "nkp_localhost_nodeport_connections",
		"Connections to NodePorts at [::1] that nkp forwards.").
		in(OVS, IPTables, NFTables).only(atLoopback6).collected()
	LocalhostBuffers = define(Gauge, "nkp_localhost_nodeport_buffer_bytes",
		"Bytes of buffers of these connections.").
		in(OVS, IPTables, NFTables).only(atLoopback6).collected()
	LocalhostConnections = define(Counter, "nkp_localhost_nodeport_connections_total",
		"Connections to NodePorts at [::1]: connected to an endpoint, or reset because the endpoint did not "+
			"accept (unanswered) or too many were open, of the Service port (limit_service_port) or in all "+
			"(limit_node).", "result").in(OVS, IPTables, NFTables).only(atLoopback6).collected()

	ChannelUp = define(Gauge, "nkp_channel_up",
		"Whether the OpenFlow channel to the switch is up (1) or not (0).").in(OVS).collected()
	FailOpen = define(Gauge, "nkp_fail_open",
		"Whether ovs-vswitchd forwards every packet by itself, past nkp's flows (1), because no controller "+
			"of the bridge is connected and its fail_mode is not secure, or not (0).").in(OVS).collected()
	CanaryFault = define(Gauge, "nkp_canary_fault",
		"Whether the data path lets no packet of nkp's own pass (1), as two in a row have shown, or not "+
			"(0). nkp status has the part of it.",
		"plane", "ip_family").in(OVS, IPTables, NFTables).collected()
	Canaries = define(Counter, "nkp_canary_packets_total",
		"Packets of nkp's own, one every 5 s, that passed the data path, were lost there, met a full "+
			"conntrack table, or show nothing (unknown).",
		"plane", "ip_family", "result").in(OVS, IPTables, NFTables).collected()
	Channels = define(Counter, "nkp_channel_connections_total",
		"OpenFlow connections made; the first is no reconnect.").in(OVS).collected()
	flowTx = define(Counter, "nkp_transactions_total",
		"Transactions with the switch: ok, refused or failed (the channel was lost).",
		"result").in(OVS).from("ok", "refused", "failed")
	flowTxTime = define(Histogram, "nkp_transaction_duration_seconds",
		"From a transaction's first message to the reply to its commit.").
		with(prometheus.ExponentialBuckets(0.0002, 2, 18)).in(OVS).from("") // 0.2 ms to 26 s
	flowTxObjects = define(Counter, "nkp_transaction_objects_total",
		"Flows and groups set or deleted.", "object").in(OVS).from("flow", "group")
	refusedObjects = define(Counter, "nkp_refused_objects_total",
		"Flows, groups and meters that the switch refused, each time it did.").in(OVS).from("")
	FlowsWanted = define(Gauge, "nkp_flows_wanted",
		"Flows that the switch should hold.").in(OVS).collected()
	FlowsInstalled = define(Gauge, "nkp_flows_installed",
		"Flows of nkp's that the switch holds, as far as known; 0 while the channel is down.").in(OVS).
		collected()
	GroupsWanted = define(Gauge, "nkp_groups_wanted",
		"Groups that the switch should hold.").in(OVS).collected()
	AffinityClients = define(Gauge, "nkp_affinity_clients",
		"Clients that session affinity remembers on the bridge.").in(OVS).collected()
	AffinityFull = define(Gauge, "nkp_affinity_limited_service_ports",
		"Service ports whose session affinity remembers --affinity-limit clients, and no further ones.").
		in(OVS).collected()
	AffinityStopped = define(Gauge, "nkp_affinity_stopped",
		"Whether session affinity remembers no further clients of any Service port (1), as there are "+
			"--affinity-limit-node, or not (0).").in(OVS).collected()
	RestingIDs = define(Gauge, "nkp_resting_ids",
		"Ids of Service ports that are gone, which no other Service port gets as long as connections may "+
			"have them.").in(OVS).collected()
	Rejects = define(Counter, "nkp_rejected_packets_total",
		"Packets that Services without endpoints sent to nkp: answered with a refusal, unanswerable (such "+
			"as an RST), dropped (the queue was full) or failed.", "result").
		in(OVS).collected()
	Dropped = define(Counter, "nkp_dropped_packets_total",
		"Packets that nkp's flows or rules drop or refuse, by reason: no_endpoint and unserved_port are "+
			"refused, removed_endpoint is reset (one packet for each connection that is closed, as a rule), "+
			"refusal_rate_limit are those of these that get no answer for the meter's limit; all others are "+
			"dropped.", "reason").
		in(OVS, IPTables, NFTables).collected().
		only("nkp serves on the bridge (read every 5 s), or has `--service-metrics`")
	Pings = define(Counter, "nkp_pings_total",
		"Pings of Services' addresses: answered, or limited (beyond the rate, without an answer). Of "+
			"iptables and nftables, answered are those let through to the node's own ICMP.",
		"plane", "result").
		in(OVS, IPTables, NFTables).collected().only("`--answer-ping` is set")
	ConntrackEntries = define(Gauge, "nkp_conntrack_entries",
		"Entries in the conntrack table of the bridge's datapath: of a zone, where it has a limit, or of "+
			"the whole table (all).",
		"zone").
		in(OVS).collected().only("ovs-vswitchd answers on its control socket")
	ConntrackLimit = define(Gauge, "nkp_conntrack_limit",
		"Entries that the zone, or the whole table (all), may hold; beyond, new connections fail.", "zone").
		in(OVS).collected().only("ovs-vswitchd answers on its control socket")

	ConntrackFailures = define(Counter, "nkp_conntrack_failures_total",
		"What got no entry in the conntrack table. Userspace datapath: connections beyond the limit of the "+
			"table (table_full) or, where Open vSwitch counts them, of a zone (zone_full). Kernel "+
			"datapath, of the whole network namespace: packets without an entry (dropped), entries that "+
			"another was faster than (insert_failed), and unanswered ones that gave way in a full table "+
			"(early_drop).", "reason").
		in(OVS).collected().only("ovs-vswitchd answers on its control socket")
	Megaflows = define(Gauge, "nkp_megaflows",
		"Flows that the bridge's datapath caches.").in(OVS).collected().
		only("ovs-vswitchd answers on its control socket")
	MegaflowLimit = define(Gauge, "nkp_megaflow_limit",
		"Flows that ovs-vswitchd lets the datapath cache at present; packets beyond go through "+
			"ovs-vswitchd one by one.").
		in(OVS).collected().only("ovs-vswitchd answers on its control socket")
	MegaflowsRefused = define(Counter, "nkp_megaflows_refused_total",
		"Flows that the limit kept out of the datapath's cache.").
		in(OVS).collected().only("ovs-vswitchd answers on its control socket, and counts them")

	restores = define(Counter, "nkp_iptables_restores_total",
		"Runs of iptables-restore, by outcome: ok or failed.", "backend", ipFamily,
		"result").in(OVS, IPTables).
		only("iptables works: alone, or beside the bridge")
	restoreTime = define(Histogram, "nkp_iptables_restore_duration_seconds",
		"One run of iptables-restore that went through.", "backend", ipFamily).
		with(prometheus.ExponentialBuckets(0.001, 2, 15)).in(OVS, IPTables).
		only("iptables works: alone, or beside the bridge")
	rulesWritten = define(Counter, "nkp_iptables_rules_written_total",
		"Rules added or deleted.", "table", ipFamily).in(OVS, IPTables).
		only("iptables works: alone, or beside the bridge")

	nftCommits = define(Counter, "nkp_nftables_transactions_total",
		"Transactions with nftables, by outcome: ok or failed.", ipFamily, "result").in(OVS, NFTables).
		from("IPv4,ok", "IPv4,failed", "IPv6,ok", "IPv6,failed")
	nftCommitTime = define(Histogram, "nkp_nftables_transaction_duration_seconds",
		"One transaction with nftables that went through.", ipFamily).
		with(prometheus.ExponentialBuckets(0.00001, 4, 12)). // 10 us to 42 s
		in(OVS, NFTables).from("IPv4", "IPv6")
	FlowtableDevices = define(Gauge, "nkp_flowtable_devices",
		"Devices of the node that `--nftables-flowtable-devices` matches: in the flowtable, or left_out.",
		ipFamily, "state").
		in(OVS, NFTables).only("`--nftables-flowtable-devices` is set").collected()

	HNSCalls = define(Counter, "nkp_hns_calls_total",
		"Calls to HNS, by what they do and outcome: ok or failed.", "call", "result").in(Windows).collected()
	HNSSyncs = define(Counter, "nkp_hns_syncs_total",
		"Comparisons with what HNS has: ok, or failed (nothing was changed).",
		"result").in(Windows).collected()
	HNSChanges = define(Counter, "nkp_hns_changes_total",
		"Objects in HNS that were created, modified, replaced or deleted, or failed to be.",
		"operation").in(Windows).collected()
	HNSObjects = define(Gauge, "nkp_hns_objects",
		"Objects in HNS: nkp's load balancers and endpoints, and of others: load balancers, and "+
			"stale_endpoint and stale_load_balancer, which no Service needs any more.",
		"object").in(Windows).collected()
	HNSFreePortBlocks = define(Gauge, "nkp_hns_free_port_blocks",
		"Blocks of 64 consecutive dynamic ports of which none is in use or reserved, counted every 5 "+
			"minutes: HNS reserves such blocks.",
		"protocol").in(Windows).only("they can be counted").collected()

	serviceConnections = define(Counter, "nkp_service_connections_total",
		"New connections of a Service port.", serviceLabels...).only("`--service-metrics` is set").collected()
	servicePackets = define(Counter, "nkp_service_packets_total",
		"Packets of a Service port: in is from the client to the endpoint.",
		append(serviceLabels[:len(serviceLabels):len(serviceLabels)], "direction")...).
		only("`--service-metrics` is set and the data plane counts them").collected()
	serviceBytes = define(Counter, "nkp_service_bytes_total",
		"IP bytes of a Service port: in is from the client to the endpoint. With hardware offload up to 14 "+
			"bytes a packet too low.",
		append(serviceLabels[:len(serviceLabels):len(serviceLabels)], "direction")...).
		only("`--service-metrics` is set and the data plane counts them").collected()
	serviceDropped = define(Counter, "nkp_service_dropped_packets_total",
		"Packets to a Service port that are dropped or refused, by reason (no_endpoint, no_local_endpoint, "+
			"source_range, removed_endpoint).",
		append(serviceLabels[:len(serviceLabels):len(serviceLabels)], "reason")...).
		in(OVS, IPTables, NFTables).only("`--service-metrics` is set").collected()
	serviceUnlisted = define(Gauge, "nkp_service_metrics_unlisted",
		"Service ports beyond --service-metrics-limit, which are summed under the namespace and service "+
			"\"\".").
		only("`--service-metrics` is set").collected()
)

var serviceLabels = []string{"namespace", "service", "port", "protocol", ipFamily}
