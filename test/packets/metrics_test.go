//go:build linux

package packets

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// scrape is what /metrics of an agent says.
type scrape struct {
	text   string
	values map[string]float64 // by series, as the text spells it
}

// scrape asks the agent on the node for its metrics.
func (c *cluster) scrape() (*scrape, error) {
	status, body, err := c.get(c.home(), "http://127.0.0.1:10249/metrics")
	if err != nil || status != 200 {
		return nil, fmt.Errorf("/metrics: %d %w", status, err)
	}
	s := &scrape{body, map[string]float64{}}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		series, number, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if number != "" {
			series += "}"
		} else {
			series, number, _ = strings.Cut(series, " ")
		}
		if s.values[series], err = strconv.ParseFloat(number, 64); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return s, nil
}

// serves reports whether there is a series of that name, or of one that a histogram has.
func (s *scrape) serves(name string) bool {
	for series := range s.values {
		have, _, _ := strings.Cut(series, "{")
		if have == name || have == name+"_count" {
			return true
		}
	}
	return false
}

// scrapeUntil scrapes until the values are as wanted.
func (c *cluster) scrapeUntil(wants map[string]float64) (s *scrape) {
	c.t.Helper()
	c.eventually("metrics", func() (err error) {
		if s, err = c.scrape(); err != nil {
			return err
		}
		for series, want := range wants {
			if got, ok := s.values[series]; !ok || got != want {
				return fmt.Errorf("%s is %v (served: %v), want %v", series, got, ok, want)
			}
		}
		return nil
	})
	return s
}

// lint checks that the metrics are well named and well formed, and that every one that is defined for the data plane is
// served.
func (c *cluster) lint(s *scrape, mode string) {
	c.t.Helper()
	problems, err := promlint.New(strings.NewReader(s.text)).Lint()
	must(c.t, err)
	for _, p := range problems {
		if p.Metric != "kubeproxy_sync_proxy_rules_no_local_endpoints_total" { // a gauge; so it is in kube-proxy
			c.t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for _, d := range metrics.Definitions() {
		if d.ServedIn(mode) && d.Only == "" && !s.serves(d.Name) {
			c.t.Errorf("mode %s does not serve %s", mode, d.Name)
		}
	}
}

// changeEndpoint gives a Service another endpoint, for a reason that came up at a time.
func (c *cluster) changeEndpoint(svc *v1.Service, trigger time.Time) {
	c.t.Helper()
	sl := slice(svc, 8080, at(c.remotes[1].IP4))
	sl.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: trigger.UTC().Format(time.RFC3339Nano)}
	c.put(sl)
}

// What dashboards and alerts read is served, and says what happened: in Open vSwitch, by iptables.
func TestMetrics(t *testing.T) {
	used := usedMetrics(t)
	served := map[string]bool{}
	for _, d := range metrics.Definitions() {
		if slices.Equal(d.Modes, []string{metrics.Windows}) { // served as defined: internal/observe/metrics tests that
			served[d.Name] = true
		}
	}
	take := func(s *scrape) {
		for _, name := range used {
			served[name] = served[name] || s.serves(name) || s.serves(strings.TrimSuffix(name, "_bucket")) ||
				s.serves(strings.TrimSuffix(name, "_sum")) || s.serves(strings.TrimSuffix(name, "_count"))
		}
	}
	t.Run("ovs", func(t *testing.T) {
		c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
		web, local, empty := service("web", "40.0.0.1"), service("local", "40.0.0.2", internalLocal), service("empty", "40.0.0.3")
		c.put(web, local, empty, slice(web, 8080, at(c.pods[1].IP4)), slice(local, 8080, at(c.remotes[0].IP4)))
		c.servePods(t)
		c.runWith("--service-metrics")
		c.settle()
		before := c.scrapeUntil(map[string]float64{
			`nkp_mode_info{mode="ovs"}`: 1, `nkp_channel_up`: 1, `nkp_channel_connections_total`: 1, `nkp_source_synced`: 1,
			`nkp_in_step{ip_family="IPv4"}`: 1, `nkp_in_step{ip_family="IPv6"}`: 1,
			`nkp_service_ports{ip_family="IPv4"}`: 3, `nkp_endpoints{ip_family="IPv4"}`: 2,
			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"}`: 1,
			`kubeproxy_sync_proxy_rules_endpoint_changes_pending`:                                             0,
			`kubeproxy_sync_proxy_rules_service_changes_total`:                                                3,
			`kubeproxy_sync_proxy_rules_endpoint_changes_total`:                                               2,
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`:                          0,
		})
		if f := before.values["nkp_flows_wanted"]; f == 0 || f != before.values["nkp_flows_installed"] {
			t.Errorf("%v flows are wanted, %v are installed", f, before.values["nkp_flows_installed"])
		}

		c.changeEndpoint(web, time.Now())
		c.scrapeUntil(map[string]float64{
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`:      1,
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv6"}`:      0,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"}`: 1,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"}`: 0,
			`nkp_transactions_total{result="refused"}`:                                    0,
			`nkp_foreign_flows`:              0,
			`nkp_repairs_total{plane="ovs"}`: 0,
		})

		_, _, _ = c.get(c.Node, "http://127.0.0.1:10256/healthz")
		for range 3 {
			c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.remotes[1].Name)
		}
		_, err := c.pods[0].Ask(c.ctx, "tcp", "40.0.0.3:80")
		if err == nil {
			t.Error("a Service without endpoints answers")
		}
		s := c.scrapeUntil(map[string]float64{
			`kubeproxy_proxy_healthz_total{code="200"}`:                                                                    1,
			`nkp_rejected_packets_total{result="answered"}`:                                                                1,
			`nkp_service_connections_total{ip_family="IPv4",namespace="default",port="http",protocol="TCP",service="web"}`: 3,
			`nkp_service_metrics_unlisted`:                                                                                 0,
		})
		c.lint(s, metrics.OVS)
		take(s)

		_, err = c.Ofctl("del-flows", c.Bridge, "table=0") // somebody else's fault
		must(t, err)
		c.scrapeUntil(map[string]float64{`nkp_repairs_total{plane="ovs"}`: 1})
		_, err = c.Ofctl("add-flow", c.Bridge, "table=30,priority=65000,udp,tp_dst=9,actions=drop")
		must(t, err)
		c.scrapeUntil(map[string]float64{`nkp_foreign_flows`: 1})
		_, err = c.Ofctl("del-flows", c.Bridge, "cookie=0/-1,table=30")
		must(t, err)
		c.scrapeUntil(map[string]float64{`nkp_foreign_flows`: 0})

		c.StopVswitchd()
		c.scrapeUntil(map[string]float64{`nkp_channel_up`: 0, `nkp_flows_installed`: 0})
		must(t, c.RestartVswitchd())
		c.scrapeUntil(map[string]float64{`nkp_channel_up`: 1, `nkp_channel_connections_total`: 2, `nkp_flows_installed`: s.values["nkp_flows_wanted"]})

		for path, want := range map[string]string{"/proxyMode": "ovs", "/healthz": "ok"} {
			if status, body, err := c.get(c.Node, "http://127.0.0.1:10249"+path); err != nil || status != 200 || body != want {
				t.Errorf("%s: %d %q %v, want %q", path, status, body, err, want)
			}
		}
	})
	t.Run("iptables", func(t *testing.T) {
		c := newCluster(t, testbed.Options{NodeOutside: true}, "--mode", "iptables")
		web := service("web", "40.0.0.1")
		c.put(web, slice(web, 8080, at(c.remotes[0].IP4)))
		c.runWith("--service-metrics")
		c.settle()
		c.scrapeUntil(map[string]float64{
			`nkp_mode_info{mode="iptables"}`: 1, `nkp_in_step{ip_family="IPv4"}`: 1, `nkp_service_ports{ip_family="IPv4"}`: 1,
			`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"}`: 0,
		})
		c.changeEndpoint(web, time.Now())
		s := c.scrapeUntil(map[string]float64{
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`:      1,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"}`: 1,
		})
		c.lint(s, metrics.IPTables)
		take(s)
		if status, body, err := c.get(c.Node, "http://127.0.0.1:10249/proxyMode"); err != nil || status != 200 || body != "iptables" {
			t.Errorf("/proxyMode: %d %q %v", status, body, err)
		}
	})
	if t.Failed() {
		return
	}
	for _, name := range used {
		if !served[name] && !servedElsewhere(name) {
			t.Errorf("a dashboard or a rule in deploy reads %s, which no agent here has served", name)
		}
	}
}

// servedElsewhere reports what other tests look at: what needs an API server, which test/k8s/e2e has, and NodePorts at [::1]
// (TestLocalhostNodePorts).
func servedElsewhere(name string) bool {
	i := slices.IndexFunc(metrics.Definitions(), func(d *metrics.Definition) bool {
		return strings.HasPrefix(name, d.Name) &&
			(d.Only == "Services come from an API server" || d.Only == metrics.LocalhostUnserved.Only)
	})
	return i >= 0
}

// usedMetrics returns the names of metrics that the dashboard and the rules read.
func usedMetrics(t *testing.T) []string {
	t.Helper()
	name := regexp.MustCompile(`\b(nkp|kubeproxy|kubernetes|rest_client|process|go)_[a-z0-9_]+`)
	recorded := regexp.MustCompile(`[a-z]+:[a-z0-9_]+:[a-z0-9_]+`) // rules make these
	found := map[string]bool{}
	for _, file := range []string{"../../deploy/prometheus/rules.yaml", "../../deploy/grafana/nkp.json"} {
		data, err := os.ReadFile(file)
		must(t, err)
		text := recorded.ReplaceAllString(string(data), "")
		for _, n := range name.FindAllString(text, -1) {
			found[n] = true
		}
	}
	if len(found) < 20 {
		t.Fatalf("dashboard and rules read only %d metrics: are they found?", len(found))
	}
	return slices.Sorted(maps.Keys(found))
}
