//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// tables returns all tables of the run in a form.
func tables(r *Results, form func(report.Table) string) string {
	var b strings.Builder
	for _, t := range []report.Table{controlTable(r), burstTable(r), growthTable(r), repairTable(r), dataTable(r), spreadTable(r), fleetTable(r)} {
		if len(t.Rows) > 0 {
			b.WriteString(form(t) + "\n")
		}
	}
	return b.String()
}

func short(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", milli(d))
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

func controlTable(r *Results) report.Table {
	t := report.Table{
		Title:  "Start, one change, memory",
		Header: []string{"proxy", "Services", "start to all serving", "one change p50", "p99", "(of)", "memory at rest", "peak before", "kernel memory of the tables", "CPU at rest", "allocated for a change"},
		Remarks: "Start: from the start of the process until every Service with pods has answered; nkp's is the median of its starts on an empty switch. " +
			"Change: from the patch of one endpoint until a new connection reached the new pod. Memory is resident, in units of a million bytes, the peak from the start until it is at rest; CPU is of one core. " +
			"Kernel memory: what the kernel has less (SUnreclaim, Percpu and VmallocUsed of /proc/meminfo) after the tables of a stopped proxy were deleted.",
	}
	for _, c := range r.Control {
		if c.GaveUp != 0 {
			t.Add(string(c.Kind), c.size(), fmt.Sprintf("given up after %s, %.0f %% served", short(c.GaveUp), 100*c.Served), "–", "–", "–", "–", fmt.Sprintf("%.0f MB", c.PeakMemory), "–", "–", "–")
			continue
		}
		tables := "–"
		if c.Kind != rig.NKP {
			tables = fmt.Sprintf("%.1f MB", c.TableMemory)
		}
		t.Add(string(c.Kind), c.size(), short(c.Start()), short(quantile(c.Change, 50)), short(quantile(c.Change, 99)), fmt.Sprint(len(c.Change)),
			fmt.Sprintf("%.0f MB", c.SettledMemory), fmt.Sprintf("%.0f MB", c.PeakMemory), tables, fmt.Sprintf("%.2f %%", 100*c.IdleCPU), allocated(c))
	}
	if f := r.Floor; f != nil && len(f.NKP) > 0 {
		best := func(list []float64) string { return fmt.Sprintf("%.0f ms", minimum(list)) }
		t.Remarks += fmt.Sprintf("\n\nProgramming alone, %d flows and groups on one switch in turns, best of %d: nkp %s, `ovs-ofctl --bundle` %s, ratio %.2f.",
			f.Objects, len(f.NKP), best(f.NKP), best(f.Ofctl), f.Ratio())
	}
	return t
}

// size names the number of Services, with that of their endpoints where it is not the usual one.
func (c Control) size() string {
	if c.Endpoints == rig.Endpoints {
		return fmt.Sprint(c.Services)
	}
	return fmt.Sprintf("%d × %d", c.Services, c.Endpoints)
}

func allocated(c Control) string {
	if c.AllocatedPerChange == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f kB", c.AllocatedPerChange/1000)
}

func minimum(list []float64) float64 {
	m := list[0]
	for _, v := range list {
		m = min(m, v)
	}
	return m
}

func burstTable(r *Results) report.Table {
	t := report.Table{
		Title:   fmt.Sprintf("While %d endpoints change each second", burstRate),
		Header:  []string{"proxy", "Services", "changes/s made", "one change p50", "p99", "(of)", "proxy's CPU", "switch's CPU", "memory after"},
		Remarks: "CPU is in cores and includes the programs that kube-proxy runs. API server, clients and proxy share the machine: the API server does not manage the full rate beside a busy proxy.",
	}
	for _, c := range r.Control {
		if c.GaveUp != 0 {
			continue
		}
		sw := "–"
		if c.Kind == rig.NKP {
			sw = fmt.Sprintf("%.2f", c.BurstSwitchCPU)
		}
		t.Add(string(c.Kind), c.size(), fmt.Sprintf("%.0f", c.BurstRate), short(quantile(c.BurstChange, 50)), short(quantile(c.BurstChange, 99)), fmt.Sprint(len(c.BurstChange)),
			fmt.Sprintf("%.2f", c.BurstCPU), sw, fmt.Sprintf("%.0f MB", c.LastMemory))
	}
	return t
}

func repairTable(r *Results) report.Table {
	t := report.Table{
		Title:  "After nft flush ruleset",
		Header: []string{"proxy", "Services", "all serving again", "connections begun meanwhile", "answered wrongly", "not answered", "open connections kept"},
		Remarks: fmt.Sprintf("Wrongly: refused, or by a host that is no endpoint. Not answered: not within %v, so that TCP would ask again, after a second; or unreachable, by the word of the router, which gets "+
			"packets to VIPs while nothing translates them. No Service changes meanwhile; "+
			"kube-proxy iptables is over iptables-legacy, which this does not delete.", askTime),
	}
	for _, c := range r.Control {
		if c.Repair == nil {
			continue
		}
		took, kept := c.Repair.outcome()
		t.Add(string(c.Kind), c.size(), took, fmt.Sprint(c.Repair.Asked), fmt.Sprint(c.Repair.Wrong), fmt.Sprint(c.Repair.Unanswered), kept)
	}
	return t
}

// growing are the costs that get exponents and plots.
var growing = []struct {
	name, file, unit string
	cost             func(Control) float64
}{
	{"start to all serving", "start", "seconds", startCost},
	{"one endpoint's change, p50", "change", "milliseconds", changeCost},
	{"memory at rest", "memory", "MB", memoryCost},
}

func growthTable(r *Results) report.Table {
	t := report.Table{
		Title:   "How cost grows with the number of Services",
		Header:  []string{"cost ~ Services^k"},
		Remarks: "k by least squares on logarithms: 0 does not grow, 1 is proportional, 2 quadratic. Small numbers of Services hide what is proportional behind what is constant.",
	}
	cell := func(k rig.Kind, cost func(Control) float64) string {
		e, ok := report.Exponent(r.points(k, cost))
		if !ok {
			return "–"
		}
		return fmt.Sprintf("%.2f", e)
	}
	for _, k := range kinds {
		t.Header = append(t.Header, string(k))
	}
	for _, g := range growing {
		row := []string{g.name}
		for _, k := range kinds {
			row = append(row, cell(k, g.cost))
		}
		t.Add(row...)
	}
	t.Add("bytes allocated for one change", cell(rig.NKP, func(c Control) float64 { return c.AllocatedPerChange }), "–", "–", "–")
	return t
}

func dataTable(r *Results) report.Table {
	t := report.Table{
		Title: "VIP against direct",
		Header: []string{"proxy", "Services", "throughput", "ratio", "latency p50", "ratio", "p99 ratio",
			"conn/s, 1 client", "ratio", "conn/s, 8 clients", "ratio", "switch CPU ratio"},
		Remarks: "Through the VIP; ratio is the median over rounds in turns of VIP over direct pod-to-pod on the same node. nkp: private Open vSwitch, userspace datapath, without segmentation offload. The others: Linux bridge, routed " +
			"pods, with offload. Absolute numbers of the two are therefore no comparison; the ratios are.",
	}
	ratio := func(p Pairs) string {
		if len(p) == 0 {
			return "–"
		}
		return fmt.Sprintf("%.3f", p.Ratio())
	}
	for _, d := range r.Data {
		t.Add(string(d.Kind), fmt.Sprint(d.Services), fmt.Sprintf("%.2f Gbit/s", d.Throughput.VIP()/1e9), ratio(d.Throughput),
			fmt.Sprintf("%.0f µs", d.Latency50.VIP()), ratio(d.Latency50), ratio(d.Latency99),
			fmt.Sprintf("%.0f", d.Connections1.VIP()), ratio(d.Connections1), fmt.Sprintf("%.0f", d.Connections8.VIP()), ratio(d.Connections8), ratio(d.SwitchCPU))
	}
	return t
}

func spreadTable(r *Results) report.Table {
	t := report.Table{
		Title:   "New connections to many Services in turns, 8 clients",
		Header:  []string{"proxy", "Services", "VIPs asked", "conn/s", "megaflows", "upcalls per connection", "once warm"},
		Remarks: "First after the datapath's cached flows were dropped, then once more with those that are there.",
	}
	for _, d := range r.Data {
		flows, upcalls, warm := "–", "–", "–"
		if d.Kind == rig.NKP {
			flows, upcalls, warm = fmt.Sprint(d.Spread.Megaflows), fmt.Sprintf("%.3f", d.Spread.Upcalls), fmt.Sprintf("%.3f", d.Spread.WarmUpcalls)
		}
		t.Add(string(d.Kind), fmt.Sprint(d.Services), fmt.Sprint(d.Spread.VIPs), fmt.Sprintf("%.0f", d.Spread.Rate), flows, upcalls, warm)
	}
	return t
}

func fleetTable(r *Results) report.Table {
	f := r.Fleet
	if f == nil {
		return report.Table{}
	}
	t := report.Table{
		Title:  fmt.Sprintf("%d agents with switches in memory, %d Services", f.Agents, f.Services),
		Header: []string{"", "all start at once", "nothing changes", fmt.Sprintf("%.0f changes/s", float64(f.Changes)/f.Changing.Took.Seconds())},
		Remarks: fmt.Sprintf("A change is committed at an agent's switch %s (p50) and %s (p99) after its patch, at the last of %d after %s (p50). An agent has %.0f MB resident.",
			short(quantile(f.Reached, 50)), short(quantile(f.Reached, 99)), f.Agents, short(quantile(f.Last, 50)), f.Memory),
	}
	row := func(name string, f func(Phase) string) {
		t.Add(name, f(r.Fleet.Start), f(r.Fleet.Idle), f(r.Fleet.Changing))
	}
	row("took", func(p Phase) string { return short(p.Took) })
	row("lists and watches begun, per agent", func(p Phase) string { return fmt.Sprintf("%.1f", p.Load.Requests/float64(f.Agents)) })
	row("watches opened, per agent", func(p Phase) string { return fmt.Sprintf("%.1f", p.Load.Watches/float64(f.Agents)) })
	row("bytes from the server, per agent", func(p Phase) string { return fmt.Sprintf("%.1f kB", p.FromServer/float64(f.Agents)/1000) })
	row("of these watch events, before compression and TLS", func(p Phase) string { return fmt.Sprintf("%.1f kB", p.Load.WatchBytes/float64(f.Agents)/1000) })
	row("bytes to the server, per agent", func(p Phase) string { return fmt.Sprintf("%.1f kB", p.ToServer/float64(f.Agents)/1000) })
	row("watch events, per agent", func(p Phase) string { return fmt.Sprintf("%.0f", p.Load.WatchEvents/float64(f.Agents)) })
	row("API server's CPU, per agent", func(p Phase) string { return fmt.Sprintf("%.1f ms", milli(p.Load.CPU)/float64(f.Agents)) })
	row("an agent's own CPU", func(p Phase) string { return fmt.Sprintf("%.1f ms", milli(p.AgentCPU)/float64(f.Agents)) })
	row("API server's memory at the end", func(p Phase) string { return fmt.Sprintf("%.0f MB", p.Load.Resident) })
	return t
}

const plots = "benchmarks" // folder of the plots, in docs

// write writes docs/benchmarks.md with its plots, and docs/scale.md.
func write(r *Results, docs string) error {
	if err := os.MkdirAll(filepath.Join(docs, plots), 0o755); err != nil {
		return err
	}
	figures := figures(r)
	var b strings.Builder
	b.WriteString("# Benchmarks\n\nWritten by `make bench`; do not edit. What is measured and how: [test/bench](../test/bench/doc.go). What limits each number, and why a target was missed: [performance.md](performance.md).\n\n")
	fmt.Fprintf(&b, "%s\n", machineText(r))
	if r.Machine.Busy() {
		b.WriteString("**The machine was busy with other work.** Single times are too long, and ratios scatter; run it again on a quiet one.\n\n")
	}
	b.WriteString(report.Markdown(verdictTable(judge(r))) + "\n")
	for _, f := range figures {
		file := filepath.Join(plots, f.file+".svg")
		if err := f.WriteSVG(filepath.Join(docs, file)); err != nil {
			return err
		}
		fmt.Fprintf(&b, "![%s](%s)\n", f.Title, file)
	}
	b.WriteString("\n" + tables(r, report.Markdown))
	if err := os.WriteFile(filepath.Join(docs, "benchmarks.md"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	if r.Fleet == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(docs, "scale.md"), []byte(scaleText(r)), 0o644)
}

func machineText(r *Results) string {
	m := r.Machine
	return fmt.Sprintf("The machine: %d cores, %s; %d GB; %s, Linux %s; load averages %s when the run began, which took %v. %s. kube-proxy and API server are %s; "+
		"kube-proxy's iptables mode is measured over iptables-legacy, since over nf_tables its one transaction for everything does not end in ten minutes at 10,000 Services.\n",
		m.Cores, m.CPU, m.MemoryGB, m.System, m.Kernel, m.Load, r.Took.Round(time.Second), strings.Join(m.Versions, "; "), r.Kube)
}

type figure struct {
	report.Figure
	file string
}

func figures(r *Results) (list []figure) {
	for _, g := range growing {
		f := figure{report.Figure{Title: g.name, Unit: g.unit}, g.file}
		for _, k := range kinds {
			f.Curves = append(f.Curves, report.Curve{Name: string(k), Points: r.points(k, g.cost)})
		}
		list = append(list, f)
	}
	for _, g := range []struct {
		name, file string
		of         func(Data) Pairs
	}{
		{"New connections, 8 clients: VIP over direct", "connections", func(d Data) Pairs { return d.Connections8 }},
		{"Throughput: VIP over direct", "throughput", func(d Data) Pairs { return d.Throughput }},
		{"Request latency p50: VIP over direct", "latency", func(d Data) Pairs { return d.Latency50 }},
	} {
		f := figure{report.Figure{Title: g.name, Unit: "ratio", Linear: true, Line: 1}, g.file}
		for _, k := range kinds {
			c := report.Curve{Name: string(k)}
			for _, d := range r.Data {
				if d.Kind == k {
					c.Points = append(c.Points, report.Point{Services: float64(d.Services), Cost: g.of(d).Ratio()})
				}
			}
			f.Curves = append(f.Curves, c)
		}
		list = append(list, f)
	}
	return list
}
