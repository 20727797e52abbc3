package main

const interval = "[$__rate_interval]"

// quantile is a quantile of a histogram, by labels beside le ("": of all nodes together).
func quantile(q, histogram, by string) string {
	if by != "" {
		by += ", "
	}
	return "histogram_quantile(" + q + ", sum by (" + by + "le) (rate(" + histogram + "_bucket{SEL}" + interval + ")))"
}

// rate is a rate of counters, summed by labels.
func rate(counter, by string) string { return "sum by (" + by + ") (rate(" + counter + interval + "))" }

var rows = []row{
	{"At a glance", []panel{
		{title: "Nodes", about: "Nodes that answer.", number: true, queries: []query{{`count(nkp_build_info{SEL})`, ""}}},
		{title: "Channels down", about: "Nodes without an OpenFlow channel to their switch.", number: true, bad: 1,
			queries: []query{{`count(nkp_channel_up{SEL} == 0) or vector(0)`, ""}}},
		{title: "Not in step", about: "Nodes whose data plane lacks something that it should hold.", number: true, bad: 1,
			queries: []query{{`count(min by (instance) (nkp_in_step{SEL}) == 0) or vector(0)`, ""}}},
		{title: "Data path faults", about: "Data planes and families that let no packet of nkp's own pass.", number: true, bad: 1,
			queries: []query{{`sum(nkp_canary_fault{SEL}) or vector(0)`, ""}}},
		{title: "Longest wait", about: "How long the oldest change has been waiting to be programmed.", unit: "s", number: true, bad: 10,
			queries: []query{{`max(nkp_behind_seconds{SEL})`, ""}}},
		{title: "Refused", about: "Service ports that a data plane refuses.", number: true, bad: 1, queries: []query{{`sum(nkp_refused_service_ports{SEL})`, ""}}},
		{title: "API server away", about: "Nodes that get no answer from the API server.", number: true, bad: 1,
			queries: []query{{`count(nkp_source_answers{SEL} == 0) or vector(0)`, ""}}},
		{title: "Change, p99", about: "From the arrival of a change until it is in force.", unit: "s", number: true, bad: 2,
			queries: []query{{quantile("0.99", "nkp_change_duration_seconds", ""), ""}}},
		{title: "Warnings", about: "What nkp status warns of, on all nodes.", number: true, queries: []query{{`sum(nkp_warnings{SEL})`, ""}}},
	}},
	{"Programming", []panel{
		{title: "Changes until in force", log: true, about: "From the arrival of a change at the data plane until it is in force.", unit: "s", queries: []query{
			{quantile("0.99", "nkp_change_duration_seconds", "instance"), "p99 {{instance}}"}, {quantile("0.5", "nkp_change_duration_seconds", "instance"), "p50 {{instance}}"}}},
		{title: "Network programming latency", log: true, about: "From the change of a pod until it is in force: the service level indicator of Kubernetes.", unit: "s", queries: []query{
			{quantile("0.99", "kubeproxy_network_programming_duration_seconds", ""), "p99"}, {quantile("0.5", "kubeproxy_network_programming_duration_seconds", ""), "p50"}}},
		{title: "Oldest change that waits", about: "Above 60 s an alert is raised.", unit: "s", queries: []query{{`max by (instance) (nkp_behind_seconds{SEL})`, "{{instance}}"}}},
		{title: "Syncs", about: "Transactions of the data planes, by family.", unit: "ops", stacked: true, queries: []query{
			{rate("kubeproxy_sync_proxy_rules_duration_seconds_count{SEL}", "ip_family"), "{{ip_family}}"}}},
		{title: "Sync duration, p99", log: true, unit: "s", about: "Full syncs follow a comparison of everything, partial ones bring what changed.", queries: []query{
			{quantile("0.99", "kubeproxy_sync_full_proxy_rules_duration_seconds", ""), "full"}, {quantile("0.99", "kubeproxy_sync_partial_proxy_rules_duration_seconds", ""), "partial"}}},
		{title: "Repairs", about: "Times that something else had changed what nkp installed.", unit: "ops", queries: []query{
			{rate("nkp_repairs_total{SEL}", "instance, plane"), "{{instance}} {{plane}}"}}},
	}},
	{"Services and source", []panel{
		{title: "Service ports and endpoints", about: "On one node: the most of all.", queries: []query{
			{`max by (ip_family) (nkp_service_ports{SEL})`, "Service ports {{ip_family}}"}, {`max by (ip_family) (nkp_endpoints{SEL})`, "endpoints {{ip_family}}"}}},
		{title: "Changes from the source", unit: "ops", about: "As every node sees them.", queries: []query{
			{`max(rate(kubeproxy_sync_proxy_rules_service_changes_total{SEL}[$__rate_interval]))`, "Services"},
			{`max(rate(kubeproxy_sync_proxy_rules_endpoint_changes_total{SEL}[$__rate_interval]))`, "EndpointSlices"}}},
		{title: "Changes that wait", about: "Given to the data plane and not in force yet.", queries: []query{
			{`sum(kubeproxy_sync_proxy_rules_service_changes_pending{SEL})`, "Services"}, {`sum(kubeproxy_sync_proxy_rules_endpoint_changes_pending{SEL})`, "EndpointSlices"}}},
		{title: "Packets of nkp's own", about: "One every 5 s by family: those that the data path lost, that met a full conntrack table, or that show nothing, are faults or load.", unit: "pps", stacked: true, queries: []query{
			{rate("nkp_canary_packets_total{SEL}", "result"), "{{result}}"}}},
		{title: "What is wrong", about: "nkp status on the node names each.", queries: []query{
			{`sum(nkp_source_errors{SEL})`, "objects that cannot be used"}, {`sum(nkp_warnings{SEL})`, "warnings"}, {`sum(nkp_port_conflicts{SEL})`, "taken ports"},
			{`sum(nkp_health_check_node_ports_failed{SEL})`, "health check ports taken"},
			{`sum(kubeproxy_sync_proxy_rules_no_local_endpoints_total{SEL})`, "policy Local without local endpoint"}}},
		{title: "API requests", about: "By status code; watches count once.", unit: "reqps", stacked: true, queries: []query{{rate("rest_client_requests_total{SEL}", "code"), "{{code}}"}}},
		{title: "API latency, p99", log: true, unit: "s", queries: []query{{quantile("0.99", "rest_client_request_duration_seconds", "verb"), "{{verb}}"}}},
	}},
	{"Open vSwitch", []panel{
		{title: "Flows and groups", about: "Wanted and installed flows are the same unless something is refused or the channel is down. There should be no flows of other owners.", queries: []query{
			{`sum(nkp_flows_wanted{SEL})`, "flows wanted"}, {`sum(nkp_flows_installed{SEL})`, "flows installed"}, {`sum(nkp_groups_wanted{SEL})`, "groups wanted"},
			{`sum(nkp_foreign_flows{SEL})`, "flows of other owners"}}},
		{title: "Transactions", unit: "ops", stacked: true, queries: []query{{rate("nkp_transactions_total{SEL}", "result"), "{{result}}"}}},
		{title: "Transaction duration", log: true, about: "From the first message to the reply to the commit.", unit: "s", queries: []query{
			{quantile("0.99", "nkp_transaction_duration_seconds", ""), "p99"}, {quantile("0.5", "nkp_transaction_duration_seconds", ""), "p50"}}},
		{title: "Objects changed", about: "Flows and groups set or deleted.", unit: "ops", stacked: true, queries: []query{
			{rate("nkp_transaction_objects_total{SEL}", "object"), "{{object}}s"}, {rate("nkp_refused_objects_total{SEL}", "job"), "refused"}}},
		{title: "Packets to Services without endpoints", about: "Dropped ones leave their clients waiting.", unit: "pps", stacked: true, queries: []query{
			{rate("nkp_rejected_packets_total{SEL}", "result"), "{{result}}"}}},
		{title: "Packets dropped or refused", about: "By reason; nkp services names the Service.", unit: "pps", stacked: true, queries: []query{
			{rate("nkp_dropped_packets_total{SEL}", "reason"), "{{reason}}"}}},
		{title: "Fullest tables", unit: "percentunit", about: "Entries against the limit, on the worst node: conntrack (of a zone or all), and cached flows. Alerts are raised at 80 %.", queries: []query{
			{`max by (zone) (nkp_conntrack_entries{SEL} / nkp_conntrack_limit{SEL})`, "conntrack {{zone}}"}, {`max(nkp_megaflows{SEL} / nkp_megaflow_limit{SEL})`, "megaflows"}}},
		{title: "Without a conntrack entry, or not cached", unit: "ops", about: "Connections without an entry fail; flows that are not cached are slow.", stacked: true, queries: []query{
			{rate("nkp_conntrack_failures_total{SEL}", "reason"), "{{reason}}"}, {rate("nkp_megaflows_refused_total{SEL}", "job"), "not cached"}}},
		{title: "Connections of the channel", about: "Made since nkp started; more than one is a reconnect.", queries: []query{
			{`max by (instance) (nkp_channel_connections_total{SEL})`, "{{instance}}"}}},
	}},
	{"iptables and Windows", []panel{
		{title: "iptables-restore", unit: "ops", stacked: true, queries: []query{{rate("nkp_iptables_restores_total{SEL}", "backend, ip_family, result"), "{{backend}} {{ip_family}} {{result}}"}}},
		{title: "iptables-restore duration, p99", log: true, unit: "s", queries: []query{{quantile("0.99", "nkp_iptables_restore_duration_seconds", "backend, ip_family"), "{{backend}} {{ip_family}}"}}},
		{title: "iptables rules written", unit: "ops", stacked: true, queries: []query{{rate("nkp_iptables_rules_written_total{SEL}", "table, ip_family"), "{{table}} {{ip_family}}"}}},
		{title: "Calls into HNS", unit: "ops", stacked: true, queries: []query{{rate("nkp_hns_calls_total{SEL}", "call, result"), "{{call}} {{result}}"}}},
		{title: "Objects in HNS", queries: []query{{`sum by (object) (nkp_hns_objects{SEL})`, "{{object}}"}}},
		{title: "Changes in HNS", unit: "ops", stacked: true, queries: []query{{rate("nkp_hns_changes_total{SEL}", "operation"), "{{operation}}"}, {rate(`nkp_hns_syncs_total{SEL, result="failed"}`, "result"), "failed syncs"}}},
	}},
	{"Traffic (with --service-metrics)", []panel{
		{title: "New connections, ten most", unit: "cps", queries: []query{{`topk(10, ` + rate("nkp_service_connections_total{SEL}", "namespace, service, port") + `)`, "{{namespace}}/{{service}}:{{port}}"}}},
		{title: "To endpoints, ten most", unit: "Bps", queries: []query{{`topk(10, ` + rate(`nkp_service_bytes_total{SEL, direction="in"}`, "namespace, service, port") + `)`, "{{namespace}}/{{service}}:{{port}}"}}},
		{title: "Dropped or refused, ten most", unit: "pps", queries: []query{{`topk(10, ` + rate("nkp_service_dropped_packets_total{SEL}", "namespace, service, port, reason") + `)`, "{{namespace}}/{{service}}:{{port}} {{reason}}"}}},
		{title: "From endpoints, ten most", unit: "Bps", queries: []query{{`topk(10, ` + rate(`nkp_service_bytes_total{SEL, direction="out"}`, "namespace, service, port") + `)`, "{{namespace}}/{{service}}:{{port}}"}}},
	}},
	{"Process", []panel{
		{title: "CPU", unit: "percentunit", about: "Of one core.", queries: []query{{rate("process_cpu_seconds_total{SEL}", "instance"), "{{instance}}"}}},
		{title: "Memory", unit: "bytes", about: "Resident set.", queries: []query{{`process_resident_memory_bytes{SEL}`, "{{instance}}"}}},
		{title: "Refused scrapes", unit: "reqps", about: "Requests to the metrics that were refused, with --metrics-authorization.", stacked: true, queries: []query{
			{rate("nkp_metrics_refused_requests_total{SEL}", "reason"), "{{reason}}"}}},
		{title: "Versions", about: "Nodes by version and data plane.", stacked: true, queries: []query{
			{`count by (version, mode) (nkp_build_info{SEL} * on (job, instance) group_left (mode) nkp_mode_info{SEL})`, "{{version}} {{mode}}"}}},
	}},
}
