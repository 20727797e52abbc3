package metrics

import "github.com/prometheus/client_golang/prometheus"

// puller is the prometheus.Collector of the metrics whose values are collected at a scrape.
type puller struct {
	m     *Metrics
	descs map[*Definition]*prometheus.Desc
}

func newPuller(m *Metrics, defs []*Definition) *puller {
	p := &puller{m, map[*Definition]*prometheus.Desc{}}
	for _, d := range defs {
		p.descs[d] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
	return p
}

// Describe is part of prometheus.Collector.
func (p *puller) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range p.descs {
		ch <- d
	}
}

// Collect is part of prometheus.Collector. It may run several times at once.
func (p *puller) Collect(ch chan<- prometheus.Metric) {
	emit := func(d *Definition, value float64, labels ...string) {
		desc := p.descs[d]
		if desc == nil {
			return // not with this data plane
		}
		t := prometheus.GaugeValue
		if d.Type == Counter {
			t = prometheus.CounterValue
		}
		metric, err := prometheus.NewConstMetric(desc, t, value, labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(desc, err)
		}
		ch <- metric
	}
	p.m.states(emit)
	if p.m.opts.Collect != nil {
		p.m.opts.Collect(emit)
	}
}
