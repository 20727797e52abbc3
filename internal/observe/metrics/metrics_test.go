package metrics

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// A clock that tests set.
type clock struct{ now time.Time }

func newTest(mode string) (*Metrics, *clock) {
	c := &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	return New(Options{Version: "v1", Mode: mode, Clock: func() time.Time { return c.now }}), c
}

// value returns the value of a metric with these label values, the number of observations of a histogram.
func value(t *testing.T, m *Metrics, name string, labels ...string) float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	must(t, err)
	text := bytes.NewBufferString("\n")
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(text, f); err != nil {
			t.Fatal(err)
		}
	}
	series := ""
	for i, l := range slices.Sorted(slices.Values(labels)) {
		label, v, _ := strings.Cut(l, "=")
		series += fmt.Sprintf("%c%s=%q", "{,"[min(i, 1)], label, v)
	}
	if series != "" {
		series += "}"
	}
	for _, name := range []string{name, name + "_count"} {
		if _, after, ok := strings.Cut(text.String(), "\n"+name+series+" "); ok {
			v, err := strconv.ParseFloat(strings.Fields(after)[0], 64)
			must(t, err)
			return v
		}
	}
	t.Fatalf("%s%s is not served", name, series)
	return 0
}

// kube-proxy's names are its own, and two of them are gauges and counters in spite of what their names say.
var kubeProxysFault = []string{"kubeproxy_sync_proxy_rules_no_local_endpoints_total"}

// Every definition is well named, and is served in its modes.
func TestDefinitions(t *testing.T) {
	for _, mode := range []string{OVS, IPTables, NFTables, Windows} {
		m, _ := newTest(mode)
		m.opts.Collect = func(emit Emit) {
			for _, d := range all {
				if d.pulled && d != buildInfo && d != modeInfo && d != inStep && d != behind && d != endpointChangesPending && d != serviceChangesPending {
					emit(d, 1, d.Labels...) // the labels' names will do for values
				}
			}
		}
		for _, d := range all {
			switch {
			case d.pulled || !d.ServedIn(mode):
			case d.Type == Counter:
				m.count(d, 1, d.Labels...)
			case d.Type == Gauge:
				m.set(d, 1, d.Labels...)
			default:
				m.observe(d, time.Second, d.Labels...)
			}
		}
		families, err := m.Gatherer().Gather()
		must(t, err)
		served := map[string]*dto.MetricFamily{}
		for _, f := range families {
			served[f.GetName()] = f
		}
		for _, d := range all {
			f := served[d.Name]
			switch {
			case (f != nil) != d.ServedIn(mode):
				t.Errorf("mode %s: %s served: %v", mode, d.Name, f != nil)
			case f != nil && (!strings.EqualFold(f.GetType().String(), string(d.Type)) || len(f.GetMetric()[0].GetLabel()) != len(d.Labels)):
				t.Errorf("mode %s: %s is a %v with labels %v", mode, d.Name, f.GetType(), f.GetMetric()[0].GetLabel())
			}
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		must(t, err)
		for _, p := range problems {
			if !slices.Contains(kubeProxysFault, p.Metric) {
				t.Errorf("mode %s: %s: %s", mode, p.Metric, p.Text)
			}
		}
	}
}

// A change is pending from its arrival until it is in force; then its latency is known.
func TestProgress(t *testing.T) {
	m, c := newTest(OVS)
	slice := k8s.Change{Ref: k8s.Ref{Kind: k8s.KindEndpointSlice, Namespace: "ns", Name: "s"}}
	service := k8s.Change{Ref: k8s.Ref{Kind: k8s.KindService, Namespace: "ns", Name: "s"}}
	name := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: "s"}, Family: k8s.IPv4}
	started := c.now
	check := func(what string, want map[string]float64) {
		t.Helper()
		for series, v := range want {
			name, label, _ := strings.Cut(series, " ")
			if got := value(t, m, name, strings.Fields(label)...); got != v {
				t.Errorf("%s: %s is %v, want %v", what, series, got, v)
			}
		}
	}
	const (
		pending   = "kubeproxy_sync_proxy_rules_endpoint_changes_pending"
		pendingS  = "kubeproxy_sync_proxy_rules_service_changes_pending"
		total     = "kubeproxy_sync_proxy_rules_endpoint_changes_total"
		totalS    = "kubeproxy_sync_proxy_rules_service_changes_total"
		latency4  = "kubeproxy_network_programming_duration_seconds ip_family=IPv4"
		latency6  = "kubeproxy_network_programming_duration_seconds ip_family=IPv6"
		inStep4   = "nkp_in_step ip_family=IPv4"
		behind4   = "nkp_behind_seconds ip_family=IPv4"
		changes4  = "nkp_change_duration_seconds ip_family=IPv4"
		syncLast4 = "kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4"
	)
	check("at the start", map[string]float64{pending: 0, total: 0, inStep4: 0, latency4: 0})

	m.Received([]k8s.Change{slice, slice, service, service})
	check("received", map[string]float64{pending: 2, pendingS: 1, total: 2, totalS: 2})
	m.Handing(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name: nil}, Triggers: []k8s.Trigger{
		{Family: k8s.IPv4, At: started.Add(-time.Hour)}, // before the start: does not count
		{Family: k8s.IPv4, At: started.Add(time.Second)}, {Family: k8s.IPv4, At: started.Add(2 * time.Second)},
	}})
	c.now = started.Add(3 * time.Second)
	m.Queued(k8s.IPv4, k8s.IPv6)
	c.now = started.Add(5 * time.Second)
	check("queued", map[string]float64{pending: 2, pendingS: 1, inStep4: 0, behind4: 2, latency4: 0})
	m.InStep(k8s.IPv4)
	check("one family in step", map[string]float64{pending: 2, inStep4: 1, behind4: 0, latency4: 2, changes4: 1, "nkp_in_step ip_family=IPv6": 0})
	m.InStep(k8s.IPv6)
	check("both in step", map[string]float64{pending: 0, pendingS: 0, latency6: 0, syncLast4: unix(c.now)})
	c.now = started.Add(50 * time.Second)
	m.InStep(k8s.IPv4)
	check("nothing new", map[string]float64{latency4: 2, changes4: 1, syncLast4: unix(started.Add(5 * time.Second))})

	m.Received([]k8s.Change{slice})
	m.Handing(k8s.Changes{})
	check("a change of nothing", map[string]float64{pending: 0, total: 3, inStep4: 1})
}

// Beside a large Service, which comes in portions, a small one is pending only until it is in force, and its latency is known then.
func TestProgressBesideALargeService(t *testing.T) {
	m, c := newTest(OVS)
	for _, n := range []string{"large", "small"} {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: n + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: n}}}
		service := k8s.ServiceName{Namespace: "ns", Name: n}
		m.Received([]k8s.Change{
			{Ref: k8s.Ref{Kind: k8s.KindService, Namespace: "ns", Name: n}},
			{Ref: k8s.Ref{Kind: k8s.KindEndpointSlice, Namespace: "ns", Name: n + "-1"}, Object: slice},
		})
		m.Handing(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{{ServiceName: service}: nil},
			Triggers: []k8s.Trigger{{Service: service, Family: k8s.IPv4, At: c.now.Add(time.Second)}}})
	}
	m.Queued(k8s.IPv4, k8s.IPv6)
	c.now = c.now.Add(5 * time.Second)
	m.InStepBut(func(n k8s.ServiceName) bool { return n.Name == "large" })
	if p := m.Pending(); p.Services != 1 || p.EndpointSlices != 1 || p.For == 0 {
		t.Errorf("pending: %+v, want 1 Service with 1 slice", p)
	}
	if n := value(t, m, "kubeproxy_network_programming_duration_seconds", "ip_family=IPv4"); n != 1 {
		t.Errorf("the latency of %v changes is known, want 1", n)
	}
	m.InStep(k8s.IPv4, k8s.IPv6)
	if p := m.Pending(); p != (Pending{}) {
		t.Errorf("pending: %+v", p)
	}
}

// A transaction counts as what it was, a sync for the families that it touches.
func TestTransaction(t *testing.T) {
	m, _ := newTest(OVS)
	m.Transaction(dataplane.Transaction{Flows: 3, Groups: 1, Took: time.Millisecond})
	m.Synced(dataplane.Sync{Families: []k8s.Family{k8s.IPv6}, Full: true, Took: time.Millisecond})
	m.Transaction(dataplane.Transaction{Flows: 1, Took: time.Millisecond})
	m.Synced(dataplane.Sync{Families: []k8s.Family{k8s.IPv4}, Took: time.Millisecond})
	m.Transaction(dataplane.Transaction{Refused: 2})
	m.Transaction(dataplane.Transaction{Failed: true})
	for series, want := range map[string]float64{
		"nkp_transactions_total result=ok": 2, "nkp_transactions_total result=refused": 1, "nkp_transactions_total result=failed": 1,
		"nkp_transaction_objects_total object=flow": 4, "nkp_transaction_objects_total object=group": 1, "nkp_refused_objects_total": 2,
		"nkp_transaction_duration_seconds":                                    2,
		"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv4":          1,
		"kubeproxy_sync_full_proxy_rules_duration_seconds ip_family=IPv4":     0,
		"kubeproxy_sync_full_proxy_rules_duration_seconds ip_family=IPv6":     1,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds ip_family=IPv4":  1,
		"kubeproxy_conntrack_reconciler_deleted_entries_total ip_family=IPv4": 0,
	} {
		name, label, _ := strings.Cut(series, " ")
		if got := value(t, m, name, strings.Fields(label)...); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
