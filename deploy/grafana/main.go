// Command grafana writes nkp.json, the Grafana dashboard of nkp: from a list of panels, with grafana-foundation-sdk.
//
//	go run -C deploy/grafana . > deploy/grafana/nkp.json
//
// It is a Go module of its own, so that nkp itself does not depend on the SDK. Start reading at rows in panels.go; which
// metrics there are says docs/metrics.md. A test of package test/packets checks that all that is read here is served.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	text, err := generate()
	if err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
	os.Stdout.Write(text)
}

// generate returns the dashboard as Grafana imports it.
func generate() ([]byte, error) {
	b := dashboard.NewDashboardBuilder("nkp").
		Uid("nkp").
		Description("Services on the nodes: whether they are programmed in time, what data planes refuse, what traffic there is.").
		Tags([]string{"nkp", "kubernetes", "networking"}).
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Timezone(common.TimeZoneBrowser).
		Time("now-3h", "now").
		Refresh("1m").
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus")).
		WithVariable(labelVariable("job", `label_values(nkp_build_info, job)`)).
		WithVariable(labelVariable("instance", `label_values(nkp_build_info{job=~"$job"}, instance)`))
	id := uint32(0)
	next := func() uint32 { id++; return id }
	for _, r := range rows {
		b.WithRow(dashboard.NewRowBuilder(r.title).Id(next()))
		for _, p := range r.panels {
			b.WithPanel(p.build(next()))
		}
	}
	d, err := b.Build()
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// labelVariable lets the reader choose values of a label; all of them at first.
func labelVariable(name, query string) *dashboard.QueryVariableBuilder {
	return dashboard.NewQueryVariableBuilder(name).
		Label(name).
		Datasource(source()).
		Query(dashboard.StringOrMap{String: &query}).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
		Sort(dashboard.VariableSortAlphabeticalAsc).
		Multi(true).
		IncludeAll(true).
		AllValue(".+").
		Current(dashboard.VariableOption{
			Selected: ptr(true),
			Text:     dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
			Value:    dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
		})
}

// source is the data source that the reader chooses.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: ptr("prometheus"), Uid: ptr("${datasource}")}
}

func ptr[T any](v T) *T { return &v }
