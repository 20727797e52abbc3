//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
)

// nodes is the size of the cluster that docs/scale.md speaks of.
const nodes = 5000

// renewal is how long client-go's watches live on the average (k8s.io/client-go/tools/cache, minWatchTimeout: from once to
// twice 5 minutes).
const renewal = 7*time.Minute + 30*time.Second

// scaleText returns what the fleet's numbers mean for a large cluster. It only multiplies: per agent times nodes, and what
// grows with the number of Services times that.
func scaleText(r *Results) string {
	f := r.Fleet
	agents := float64(f.Agents)
	perService := func(v float64) float64 { return v / agents / float64(f.Services) }
	startBytes, startCPU := perService(f.Start.FromServer), perService(f.Start.Load.CPU.Seconds())
	changes := float64(max(1, f.Changes))
	changeBytes := (f.Changing.FromServer/f.Changing.Took.Seconds() - f.Idle.FromServer/f.Idle.Took.Seconds()) * f.Changing.Took.Seconds() / agents / changes
	changeCPU := (f.Changing.Load.CPU.Seconds()/f.Changing.Took.Seconds() - f.Idle.Load.CPU.Seconds()/f.Idle.Took.Seconds()) * f.Changing.Took.Seconds() / agents / changes

	var b strings.Builder
	fmt.Fprintf(&b, "# nkp at %d nodes, on paper\n\nWritten by `make bench`; do not edit. It multiplies what %d agents with switches in memory cost one API server at %d Services "+
		"([benchmarks.md](benchmarks.md), last table). The real thing has not been tried.\n\n", nodes, f.Agents, f.Services)
	t := report.Table{Title: "One agent", Header: []string{"", "measured"}}
	t.Add("watches it holds open", fmt.Sprintf("%.1f", f.Start.Load.Watches/agents))
	t.Add(fmt.Sprintf("requests it made in %.0f s without changes", f.Idle.Took.Seconds()), fmt.Sprintf("%.1f", f.Idle.Load.Requests/agents))
	t.Add("bytes it gets at its start, per Service", fmt.Sprintf("%.0f", startBytes))
	t.Add("API server's CPU at its start, per Service", fmt.Sprintf("%.1f µs", startCPU*1e6))
	t.Add("bytes it gets for one endpoint's change", fmt.Sprintf("%.0f", changeBytes))
	t.Add("API server's CPU for one change, per agent", fmt.Sprintf("%.1f µs", changeCPU*1e6))
	b.WriteString(report.Markdown(t) + "\n")
	t = report.Table{Title: fmt.Sprintf("%d agents, 10,000 Services with 10 endpoints", nodes), Header: []string{"", "all API servers together"}}
	t.Add("watches open", fmt.Sprintf("%.0f", nodes*f.Start.Load.Watches/agents))
	t.Add("watches renewed by client-go, after 5 to 10 minutes each", fmt.Sprintf("%.0f each second", nodes*f.Start.Load.Watches/agents/renewal.Seconds()))
	t.Add("bytes, if all agents start at once", fmt.Sprintf("%.1f GB", nodes*full*startBytes/1e9))
	t.Add("CPU for that", fmt.Sprintf("%.0f core seconds", nodes*full*startCPU))
	for _, rate := range []float64{1, 10, 100} {
		t.Add(fmt.Sprintf("endpoints that change each second: %g", rate), fmt.Sprintf("%.1f MB/s, %.2f cores", rate*nodes*changeBytes/1e6, rate*nodes*changeCPU))
	}
	b.WriteString(report.Markdown(t))
	b.WriteString(`
What follows from it:

- While nothing changes the API servers keep connections and memory for the agents; of requests there are only the watches
  that client-go renews, where they were.
- A change costs an API server one watch event for each agent that is connected to it. kube-proxy follows the same four
  kinds of objects by the same library; for the API server nkp is neither dearer nor cheaper.
- All agents at once happens when the API servers restart or when a DaemonSet is updated without a limit. client-go resumes
  broken watches where they were, with a backoff that is left to chance; a DaemonSet's maxUnavailable spreads an update. Both
  spread the bytes above over minutes.
- What limits a cluster of this size is the rate of changes times the number of nodes, for any proxy that runs on every
  node and follows EndpointSlices.
`)
	return b.String()
}
