package differential

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/logs"
	kubemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
	kubeproxyv1 "k8s.io/kube-proxy/config/v1alpha1"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	proxymetrics "k8s.io/kubernetes/pkg/proxy/metrics"

	"github.com/nkp-proxy/nkp/internal/observe/metrics"
)

// theirMux serves what kube-proxy serves on port 10249 without feature gates, put together from the same parts in the same way
// (cmd/kube-proxy/app/server.go, serveMetrics).
func theirMux(t *testing.T, mode kubeproxyconfig.ProxyMode, config *kubeproxyv1.KubeProxyConfiguration) http.Handler {
	t.Helper()
	m := mux.NewPathRecorderMux("kube-proxy")
	healthz.InstallHandler(m)
	slis.SLIMetricsWithReset{}.Install(m)
	m.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprintf(w, "%s", mode)
	})
	m.Handle("/metrics", legacyregistry.Handler())
	routes.Profiling{}.Install(m)
	routes.DebugFlags{}.Install(m, "v", routes.StringFlagPutHandler(logs.GlogSetter))
	c, err := configz.New(kubeproxyconfig.GroupName)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { configz.Delete(kubeproxyconfig.GroupName) })
	if err := c.Set(config); err != nil {
		t.Fatal(err)
	}
	configz.InstallHandler(m)
	return m
}

// The metrics server answers every request as kube-proxy's does, byte by byte but for the numbers.
func TestMetricsServer(t *testing.T) {
	config := &kubeproxyv1.KubeProxyConfiguration{}
	config.APIVersion, config.Kind = "kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration"
	config.ClusterCIDR = "10.0.0.0/16"
	theirs := httptest.NewServer(theirMux(t, kubeproxyconfig.ProxyModeIPTables, config))
	defer theirs.Close()
	ours := httptest.NewServer(metrics.NewServer(metrics.New(metrics.Options{Mode: metrics.IPTables}), metrics.ServerOptions{
		Profiling: true, ProxyMode: "iptables", SetVerbosity: func(uint32) {}, Log: slog.New(slog.DiscardHandler),
		Config: func() map[string]any { return map[string]any{kubeproxyconfig.GroupName: config} },
	}).Handler)
	defer ours.Close()
	for _, r := range []struct{ method, path, body string }{
		{"GET", "/healthz", ""}, {"HEAD", "/healthz", ""}, {"POST", "/healthz", ""}, {"GET", "/healthz/", ""}, {"GET", "/healthz/ping", ""},
		{"GET", "/healthz?verbose", ""}, {"GET", "/healthz?verbose&exclude=ping", ""}, {"GET", "/healthz?exclude=x&verbose&exclude=y", ""},
		{"GET", "/livez", ""}, {"GET", "/", ""}, {"GET", "//healthz", ""}, {"GET", "/a/../healthz", ""},
		{"GET", "/metrics/slis", ""}, {"DELETE", "/metrics/slis", ""}, {"GET", "/metrics/slis", ""}, {"GET", "/metrics/", ""},
		{"GET", "/proxyMode", ""}, {"POST", "/proxyMode", ""}, {"GET", "/configz", ""}, {"GET", "/configz/", ""},
		{"GET", "/debug/pprof", ""}, {"GET", "/debug/pprof/nothing", ""}, {"GET", "/debug/pprof/symbol", ""}, {"GET", "/debug", ""},
		{"GET", "/debug/flags", ""}, {"GET", "/debug/flags/x", ""}, {"GET", "/debug/flags/v", ""}, {"PUT", "/debug/flags/v", "3"},
		{"PUT", "/debug/flags/v", "-1"}, {"PUT", "/debug/flags/v", "many"}, {"GET", "/flagz", ""}, {"GET", "/statusz", ""},
	} {
		want := exchange(t, strings.TrimPrefix(theirs.URL, "http://"), r.method, r.path, r.body)
		if got := exchange(t, strings.TrimPrefix(ours.URL, "http://"), r.method, r.path, r.body); got != want {
			t.Errorf("%s %s %s:\nkube-proxy %q\nnkp        %q", r.method, r.path, r.body, want, got)
		}
	}
}

// Every metric that kube-proxy's sources define is served by nkp, or docs/metrics.md says why it is not; in HNS mode, too, every one that
// does not depend on kube-proxy's mode.
func TestEveryMetricOfKubeProxys(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "k8s.io/kubernetes/pkg/proxy/metrics").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "metrics.go"))
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, reasons, ok := strings.Cut(string(docs), "## What kube-proxy has and nkp has not")
	if !ok {
		t.Fatal("docs/metrics.md has no section of what is not served")
	}
	ours := map[string]*metrics.Definition{}
	for _, d := range metrics.Definitions() {
		ours[d.Name] = d
	}
	names := map[string]bool{}
	for _, m := range metricName.FindAllStringSubmatch(string(source), -1) {
		name := m[2]
		if m[1] != "" {
			name = "kubeproxy_" + m[1]
		}
		names[name] = true
		if listed := strings.Contains(reasons, "| `"+name+"` |"); (ours[name] != nil) == listed {
			t.Errorf("%s: served by nkp: %t, listed as not served: %t", name, ours[name] != nil, listed)
		}
	}
	if len(names) < 20 {
		t.Errorf("only %d metrics in kube-proxy's sources", len(names))
	}
	// Without iptables and nftables nkp serves those that kube-proxy registers in each of its modes.
	for name := range names {
		d := ours[name]
		if d == nil || strings.Contains(name, "winkernel") || strings.Contains(name, "iptables") || strings.Contains(name, "nftables") || strings.Contains(name, "_conntrack_") || strings.Contains(name, "_full_") || strings.Contains(name, "_partial_") {
			continue
		}
		for _, mode := range []string{metrics.OVS, metrics.IPTables, metrics.NFTables, metrics.Windows} {
			if !d.ServedIn(mode) {
				t.Errorf("%s is not served in mode %s", name, mode)
			}
		}
	}
}

// metricName matches where a metric is named: by a name below the subsystem kubeproxy, or by a description with a full name.
var metricName = regexp.MustCompile(`(?:Name:\s+"(\w+)"|"(kubeproxy_\w+)")`)

// What has kube-proxy's name is kube-proxy's: type, labels and buckets are the same.
func TestMetricsAsKubeProxys(t *testing.T) {
	proxymetrics.RegisterMetrics(kubeproxyconfig.ProxyModeIPTables)
	// Of modes kernelspace and nftables: RegisterMetrics takes one mode in a process.
	for _, c := range []*kubemetrics.CounterVec{
		proxymetrics.WinKernelLBCreateFailure, proxymetrics.WinKernelLBUpdateFailure, proxymetrics.WinKernelLBDeleteFailure,
	} {
		legacyregistry.MustRegister(c)
		c.WithLabelValues("IPv4", "clusterip", "other").Inc()
	}
	legacyregistry.MustRegister(proxymetrics.NFTablesSyncFailuresTotal)
	proxymetrics.NFTablesSyncFailuresTotal.WithLabelValues("IPv4").Inc()
	for _, family := range []string{"IPv4", "IPv6"} { // what has no value is not gathered
		proxymetrics.SyncProxyRulesLatency.WithLabelValues(family).Observe(1)
		proxymetrics.SyncFullProxyRulesLatency.WithLabelValues(family).Observe(1)
		proxymetrics.SyncPartialProxyRulesLatency.WithLabelValues(family).Observe(1)
		proxymetrics.SyncProxyRulesLastTimestamp.WithLabelValues(family).Set(1)
		proxymetrics.SyncProxyRulesLastQueuedTimestamp.WithLabelValues(family).Set(1)
		proxymetrics.NetworkProgrammingLatency.WithLabelValues(family).Observe(1)
		proxymetrics.SyncProxyRulesNoLocalEndpointsTotal.WithLabelValues("internal", family).Set(1)
		proxymetrics.IPTablesRestoreFailuresTotal.WithLabelValues(family).Inc()
		proxymetrics.IPTablesPartialRestoreFailuresTotal.WithLabelValues(family).Inc()
		proxymetrics.IPTablesRulesLastSync.WithLabelValues("nat", family).Set(1)
		proxymetrics.ReconcileConntrackFlowsLatency.WithLabelValues(family).Observe(1)
		proxymetrics.ReconcileConntrackFlowsDeletedEntriesTotal.WithLabelValues(family).Inc()
	}
	proxymetrics.ProxyHealthzTotal.WithLabelValues("200").Inc()
	proxymetrics.ProxyLivezTotal.WithLabelValues("200").Inc()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shape := map[string]string{}
	for _, f := range families {
		one := f.GetMetric()[0]
		s := strings.ToLower(f.GetType().String())
		for _, l := range one.GetLabel() {
			s += " " + l.GetName()
		}
		for _, b := range one.GetHistogram().GetBucket() {
			s += fmt.Sprintf(" %g", b.GetUpperBound())
		}
		shape[f.GetName()] = s
	}
	for _, name := range []string{"iptables_ct_state_invalid_dropped_packets_total", "iptables_localhost_nodeports_accepted_packets_total"} {
		shape["kubeproxy_"+name] = "counter" // not gathered without nfacct in the kernel; nfacctMetricCollector makes counters without labels
	}
	compared := 0
	for _, d := range metrics.Definitions() {
		if !strings.HasPrefix(d.Name, "kubeproxy_") {
			continue
		}
		compared++
		if got, want := d.Shape(), shape[d.Name]; got != want {
			t.Errorf("%s:\nkube-proxy %s\nnkp        %s", d.Name, want, got)
		}
	}
	if compared < 15 {
		t.Errorf("only %d metrics were compared", compared)
	}
}
