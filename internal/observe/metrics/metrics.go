package metrics

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nkp-proxy/nkp/k8s"
)

// Options are the settings of Metrics.
type Options struct {
	Version string
	Mode    string // the data plane: OVS, IPTables or Windows
	// Families are those that the data plane serves; none: both.
	Families []k8s.Family
	// Collect collects the states at a scrape: it calls emit for each value. It must not block for long. nil:
	// there are none.
	Collect func(emit Emit)
	// Stuck reports whether the data plane makes no progress: it then does not count as in step. nil: it
	// always makes progress.
	Stuck func() bool
	// Clock returns the time; nil: time.Now.
	Clock func() time.Time
}

// Emit takes a value of a metric at a scrape, with a value for each of its labels.
type Emit func(def *Definition, value float64, labels ...string)

// Metrics are the numbers of one agent. All methods may be called from any goroutine, and do not wait.
type Metrics struct {
	opts     Options
	registry *prometheus.Registry

	counters   map[*Definition]*prometheus.CounterVec
	gauges     map[*Definition]*prometheus.GaugeVec
	histograms map[*Definition]*prometheus.HistogramVec

	progress progress
	lost     atomic.Bool // see Lost

	mu       sync.Mutex // protects services
	services *serviceCounters
}

// New returns the Metrics of an agent that starts now.
func New(o Options) *Metrics {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Stuck == nil {
		o.Stuck = func() bool { return false }
	}
	if len(o.Families) == 0 {
		o.Families = []k8s.Family{k8s.IPv4, k8s.IPv6}
	}

	m := &Metrics{
		opts: o, registry: prometheus.NewRegistry(),
		counters:   map[*Definition]*prometheus.CounterVec{},
		gauges:     map[*Definition]*prometheus.GaugeVec{},
		histograms: map[*Definition]*prometheus.HistogramVec{},
	}
	m.progress.init(o.Clock(), o.Families)

	var pulled []*Definition
	for _, d := range all {
		switch {
		case !d.ServedIn(o.Mode):
		case d.pulled:
			pulled = append(pulled, d)
		default:
			m.register(d)
		}
	}

	m.registry.MustRegister(newPuller(m, pulled), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.watchClient()
	return m
}

// Gatherer returns the gatherer of all metrics.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// register creates a metric and the children that are served from the start.
func (m *Metrics) register(d *Definition) {
	var c prometheus.Collector
	var touch func(labels ...string)
	switch d.Type {
	case Counter:
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
		m.counters[d], c, touch = v, v, func(l ...string) { v.WithLabelValues(l...) }
	case Gauge:
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.Labels)
		m.gauges[d], c, touch = v, v, func(l ...string) { v.WithLabelValues(l...) }
	case Histogram:
		v := prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.buckets}, d.Labels)
		m.histograms[d], c, touch = v, v, func(l ...string) { v.WithLabelValues(l...) }
	}
	m.registry.MustRegister(c)
	for _, labels := range d.initial {
		touch(labels[:len(d.Labels)]...)
	}
}

// count adds to a counter; one that is not served with this data plane is left alone.
func (m *Metrics) count(d *Definition, n int, labels ...string) {
	if v := m.counters[d]; v != nil {
		v.WithLabelValues(labels...).Add(float64(n))
	}
}

func (m *Metrics) set(d *Definition, value float64, labels ...string) {
	if v := m.gauges[d]; v != nil {
		v.WithLabelValues(labels...).Set(value)
	}
}

func (m *Metrics) observe(d *Definition, took time.Duration, labels ...string) {
	if v := m.histograms[d]; v != nil {
		v.WithLabelValues(labels...).Observe(took.Seconds())
	}
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / float64(time.Second) }

// states emits the states that Metrics itself tracks.
func (m *Metrics) states(emit Emit) {
	emit(buildInfo, 1, m.opts.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	emit(modeInfo, 1, m.opts.Mode)
	m.progress.states(m.opts.Clock(), m.opts.Stuck() || m.lost.Load(), emit)
	m.mu.Lock()
	s := m.services
	m.mu.Unlock()
	if s != nil {
		s.states(emit)
	}
}

// Bool returns the value of a boolean metric: 1 or 0.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
