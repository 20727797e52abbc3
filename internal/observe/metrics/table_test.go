package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/golden"
)

// docs/metrics.md says what is served.
func TestTable(t *testing.T) {
	golden.Check(t, "../../../docs/metrics.md", table())
}

// notServed are kube-proxy's metrics that nkp has no like of, and why.
var notServed = []struct{ name, why string }{
	{"kubeproxy_sync_proxy_rules_iptables_total", "nkp writes what changed and does not keep count of all rules: `nkp_service_ports` says how much there is"},
	{"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "nkp cleanup says so"},
	{"kubeproxy_nftables_localhost_nodeport_rejected_packets_total", "nkp has no rule that rejects packets to NodePorts at loopback addresses: at 127.0.0.1 it serves them, and at [::1] the kernel refuses what no process listens for"},
	{"rest_client_exec_plugin_*", "nkp's one client of the API server is described by the three `rest_client_…` above"},
	{"rest_client_request_size_bytes", "as above"},
	{"rest_client_response_size_bytes", "as above"},
	{"rest_client_transport_*", "as above"},
	{"apiserver_*", "about API servers: kube-proxy links their libraries, and these stay 0"},
	{"aggregator_*", "as above"},
	{"registered_metrics_total", "about Kubernetes' metrics framework, which nkp does not use"},
	{"hidden_metrics_total", "as above"},
	{"disabled_metrics_total", "as above"},
	{"cardinality_enforcement_*", "as above"},
	{"go_*", "nkp serves what client_golang has by default, not all of runtime/metrics"},
	{"kubernetes_feature_enabled", "nkp's behaviour depends on one gate, AllowServiceExternalIPs, which its configuration shows"},
	{"kubernetes_build_info", "nkp is no part of a Kubernetes release: `nkp_build_info`"},
}

// table returns docs/metrics.md: what is served, for people.
func table() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from internal/observe/metrics: go test ./internal/observe/metrics -run TestTable -update -->
# Metrics

nkp serves metrics at ` + "`/metrics`" + ` on ` + "`--metrics-bind-address`" + ` (127.0.0.1:10249), in Prometheus' text form. What means the same as
in kube-proxy has its name, labels and buckets, so that dashboards and alerts for kube-proxy keep working. Beside them come
client_golang's ` + "`go_…` and `process_…`" + `. ` + "`/metrics/slis`" + ` has ` + "`kubernetes_healthcheck`, `kubernetes_healthchecks_total`" + ` and the
process' start, as in kube-proxy.

The label ` + "`ip_family`" + ` is IPv4 or IPv6. A transaction in Open vSwitch may touch both families: it then counts for each.
A full one follows a comparison of everything with the switch (at the start, after a reconnect, on an audit that found a
difference), a partial one brings what changed. What iptables does beside the bridge is not among the syncs; its runs of
iptables-restore are counted. The latency of programming leaves out changes that came before the agent started, and those that
change nothing on this node.

Alerts are in
` + "[deploy/prometheus](../deploy/prometheus/rules.yaml), a dashboard in [deploy/grafana](../deploy/grafana/nkp.json)" + `.

`)
	section(&b, "nkp's own", func(d *Definition) bool { return !d.KubeProxys() })
	section(&b, "As in kube-proxy", (*Definition).KubeProxys)
	b.WriteString("## What kube-proxy has and nkp has not\n\n| Name | Why |\n|---|---|\n")
	for _, n := range notServed {
		fmt.Fprintf(&b, "| `%s` | %s |\n", n.name, n.why)
	}
	return b.String()
}

func section(b *strings.Builder, title string, has func(*Definition) bool) {
	fmt.Fprintf(b, "## %s\n\n| Name | Type | Labels | Data planes | Meaning |\n|---|---|---|---|---|\n", title)
	for _, d := range Definitions() {
		if !has(d) {
			continue
		}
		modes := strings.Join(d.Modes, ", ")
		if modes == "" {
			modes = "all"
		}
		labels := ""
		for i, l := range d.Labels {
			if i > 0 {
				labels += ", "
			}
			labels += "`" + l + "`"
		}
		help := strings.TrimSuffix(d.Help, ".")
		if d.Only != "" {
			help += " (where " + d.Only + ")"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", d.Name, d.Type, labels, modes, help)
	}
	b.WriteString("\n")
}
