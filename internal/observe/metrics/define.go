package metrics

import (
	"fmt"
	"slices"
	"strings"
)

// Type is the type of a metric, as Prometheus spells it.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Definition says what a metric is. Names, labels and meaning are a contract with dashboards and alerts.
type Definition struct {
	Name   string
	Type   Type
	Help   string
	Labels []string
	// Modes are the data planes with which it is served; none: all.
	Modes []string
	// Only is a further condition for serving it, in words; "": none.
	Only string

	buckets []float64
	initial [][]string // label values that are served from the start, as 0
	pulled  bool       // its values are collected at a scrape
}

// The data planes, as --mode names them.
const (
	OVS      = "ovs"
	IPTables = "iptables"
	NFTables = "nftables"
	Windows  = "windows"
)

// all holds every definition, in the order in which they are written down.
var all []*Definition

func define(t Type, name, help string, labels ...string) *Definition {
	d := &Definition{Name: name, Type: t, Help: help, Labels: labels}
	all = append(all, d)
	return d
}

// in restricts a metric to some data planes.
func (d *Definition) in(modes ...string) *Definition { d.Modes = modes; return d }

// only sets the condition, in words, under which it is served.
func (d *Definition) only(when string) *Definition { d.Only = when; return d }

// with sets the upper bounds of a histogram's buckets.
func (d *Definition) with(buckets []float64) *Definition { d.buckets = buckets; return d }

// from sets label values that are served as 0 from the start, because a rate needs a 0 to start at.
func (d *Definition) from(values ...string) *Definition {
	for _, v := range values {
		d.initial = append(d.initial, strings.Split(v, ","))
	}
	return d
}

// collected marks a metric whose values are collected at a scrape.
func (d *Definition) collected() *Definition { d.pulled = true; return d }

// Shape returns in one line what series it has: type, labels sorted by name, upper bounds of buckets.
func (d *Definition) Shape() string {
	s := string(d.Type)
	for _, l := range slices.Sorted(slices.Values(d.Labels)) {
		s += " " + l
	}
	for _, b := range d.buckets {
		s += fmt.Sprintf(" %g", b)
	}
	return s
}

// ServedIn reports whether a metric is served with a data plane.
func (d *Definition) ServedIn(mode string) bool {
	return len(d.Modes) == 0 || slices.Contains(d.Modes, mode)
}

// KubeProxys reports whether name and meaning are kube-proxy's.
func (d *Definition) KubeProxys() bool { return !strings.HasPrefix(d.Name, "nkp_") }

// Definitions returns every metric that nkp may serve, sorted by name; those of the Go runtime and of the
// process (go_…, process_…), which client_golang defines, are not among them.
func Definitions() []*Definition {
	return slices.SortedFunc(slices.Values(all), func(a, b *Definition) int {
		return strings.Compare(a.Name, b.Name)
	})
}
