package main

import (
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// row is a headline with the panels below it.
type row struct {
	title  string
	panels []panel
}

// panel is a graph over time, or one number.
type panel struct {
	title   string
	about   string // for the reader who asks
	unit    string // Grafana's name of it; "": a plain number
	queries []query
	number  bool    // one number: the first query's value now
	bad     float64 // a number from here on is red; 0: never
	stacked bool
	log     bool // durations of which the slowest must not hide the rest
}

// query is one PromQL expression; SEL in it stands for the nodes that the reader chose.
type query struct{ expr, legend string }

// selector are the nodes that the reader chose.
const selector = `job=~"$job", instance=~"$instance"`

// Grafana's grid is 24 wide. Eight numbers fit into a line, three graphs into the next.
const (
	numberWidth, numberHeight = 3, 4
	graphWidth, graphHeight   = 8, 8
)

func (p *panel) build(id uint32) cog.Builder[dashboard.Panel] {
	if p.number {
		return p.stat(id)
	}
	return p.graph(id)
}

func (p *panel) stat(id uint32) cog.Builder[dashboard.Panel] {
	steps := []dashboard.Threshold{{Color: "green"}}
	if p.bad > 0 {
		steps = append(steps, dashboard.Threshold{Value: ptr(p.bad), Color: "red"})
	}
	b := stat.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.about).Datasource(source()).
		Span(numberWidth).Height(numberHeight).
		NoValue("none").
		ColorMode(common.BigValueColorModeValue).
		GraphMode(common.BigValueGraphModeArea).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps))
	if p.unit != "" {
		b.Unit(p.unit)
	}
	for i, q := range p.queries {
		b.WithTarget(q.target(i))
	}
	return b
}

func (p *panel) graph(id uint32) cog.Builder[dashboard.Panel] {
	b := timeseries.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.about).Datasource(source()).
		Span(graphWidth).Height(graphHeight).
		LineWidth(1).FillOpacity(10).ShowPoints(common.VisibilityModeNever).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true))
	if p.log {
		b.ScaleDistribution(common.NewScaleDistributionConfigBuilder().Type(common.ScaleDistributionLog).Log(10))
	} else {
		b.Min(0)
	}
	if p.stacked {
		b.Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal)).FillOpacity(40)
	}
	if p.unit != "" {
		b.Unit(p.unit)
	}
	for i, q := range p.queries {
		b.WithTarget(q.target(i))
	}
	return b
}

func (q *query) target(i int) *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Expr(strings.ReplaceAll(q.expr, "SEL", selector)).LegendFormat(q.legend).Datasource(source())
}
