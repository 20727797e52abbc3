//go:build linux

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// verdict is one target and what was measured. want is a bound: upper selects the good side.
type verdict struct {
	what      string
	got, want float64
	upper     bool // got must not be above want; otherwise not below
	unit      string
	// within is the 95 % confidence interval of got, where what is compared scatters by more than it may differ; zero: none.
	within [2]float64
}

func (v verdict) holds() bool {
	if v.upper {
		return v.got <= v.want
	}
	return v.got >= v.want
}

// missed reports whether the target does not hold, beyond what scatter can explain.
func (v verdict) missed() bool {
	scatter := v.within != [2]float64{} && v.within[0] <= v.want && v.want <= v.within[1]
	return !v.holds() && !scatter
}

// full is the number of Services that the targets of the control plane speak of. A quick run, which does not reach it, is
// held to those targets only that do not depend on the number.
const full = 10_000

// judge returns the targets that the measurements can be held to. They are ratios within the run, but for the time of one
// change and the CPU time at rest.
func judge(r *Results) []verdict {
	var v verdicts
	v.control(r)
	v.data(r)
	v.nftables(r)
	v.huge(r)
	return v
}

type verdicts []verdict

func (v *verdicts) most(what string, got, want float64, unit string) {
	*v = append(*v, verdict{what: what, got: got, want: want, upper: true, unit: unit})
}

func (v *verdicts) least(what string, got, want float64, unit string) {
	*v = append(*v, verdict{what: what, got: got, want: want, unit: unit})
}

// control judges programming, start, changes, memory and CPU time at the largest number of Services.
func (v *verdicts) control(r *Results) {
	ours := r.control(rig.NKP)
	if len(ours) == 0 {
		return
	}
	nkp := last(ours)
	if r.Floor != nil && nkp.Services >= full {
		v.most("programming, of ovs-ofctl --bundle", r.Floor.Ratio(), 0.7, "")
	}
	if nkp.Services >= full {
		v.most("one endpoint's change, p50", milli(quantile(nkp.Change, 50)), 10, "ms")
		v.most("one endpoint's change, p99", milli(quantile(nkp.Change, 99)), 50, "ms")
	}
	if len(ours) > 1 {
		v.most("exponent of one endpoint's change", r.exponent(rig.NKP, 0, changeCost), 0.1, "")
		v.most("exponent of what one change allocates", r.exponent(rig.NKP, 0, func(c Control) float64 { return c.AllocatedPerChange }), 0.1, "")
	}
	v.most("CPU at rest", 100*nkp.IdleCPU, 0.5, "%")
	peers := 0
	start, change, memory := 0.0, 0.0, 0.0 // of the best peer
	for _, k := range []rig.Kind{rig.KubeNft, rig.KubeLegacy} {
		for _, c := range r.control(k) {
			if c.Services != nkp.Services {
				continue
			}
			if peers == 0 || c.Start().Seconds() < start {
				start = c.Start().Seconds()
			}
			if peers == 0 || changeCost(c) < change {
				change = changeCost(c)
			}
			if peers == 0 || c.SettledMemory < memory {
				memory = c.SettledMemory
			}
			peers++
		}
	}
	if peers > 0 && nkp.Services >= full {
		v.least("start, times faster than the faster kube-proxy", start/nkp.Start().Seconds(), 5, "×")
		v.least("one endpoint's change, times faster", change/changeCost(nkp), 100, "×")
		v.most("memory, of the smaller kube-proxy's", nkp.SettledMemory/memory, 0.5, "")
	}
}

// data judges what packets and connections cost, at every number of Services.
func (v *verdicts) data(r *Results) {
	var first, latest *Data
	for i, d := range r.Data {
		if d.Kind != rig.NKP {
			continue
		}
		at := fmt.Sprintf(" at %d Services", d.Services)
		v.least("throughput, of direct"+at, d.Throughput.Ratio(), 0.97, "")
		v.most("request latency p50, of direct"+at, d.Latency50.Ratio(), 1.05, "")
		v.least("new connections, 1 client, of direct"+at, d.Connections1.Ratio(), 0.95, "")
		v.least("new connections, 8 clients, of direct"+at, d.Connections8.Ratio(), 0.95, "")
		v.most("switch CPU per connection, of direct"+at, d.SwitchCPU.Ratio(), 1.05, "")
		for _, peer := range r.Data {
			if (peer.Kind == rig.KubeNft || peer.Kind == rig.KubeLegacy) && peer.Services == d.Services {
				v.shares("", at, &d, &peer)
			}
		}
		if latest = &r.Data[i]; first == nil {
			first = latest
		}
	}
	if first != nil && first != latest {
		v.least(fmt.Sprintf("new connections at %d Services, of those at %d", latest.Services, first.Services), latest.Connections8.Ratio()/first.Connections8.Ratio(), 0.95, "")
	}
}

// shares holds a proxy to what a peer keeps of direct.
func (v *verdicts) shares(who, at string, d, peer *Data) {
	share := func(what string, ours, theirs Pairs) {
		*v = append(*v, verdict{what: fmt.Sprintf("%s%s: share kept, of %s's%s", who, what, peer.Kind, at),
			got: ours.Ratio() / theirs.Ratio(), want: 1, within: quotient(ours, theirs)})
	}
	share("new connections, 8 clients", d.Connections8, peer.Connections8)
	share("throughput", d.Throughput, peer.Throughput)
}

// nftables judges the mode nftables, on nodes without Open vSwitch.
func (v *verdicts) nftables(r *Results) {
	const who = "nkp nftables: "
	if ours := r.control(rig.NFTables); len(ours) > 0 && last(ours).Services >= full {
		nkp := last(ours)
		v.most(who+"start", nkp.Start().Seconds(), 3, "s")
		v.most(who+"one endpoint's change, p50", changeCost(nkp), 10, "ms")
		v.most(who+"one endpoint's change, p99", milli(quantile(nkp.Change, 99)), 30, "ms")
		v.most(who+"exponent of one endpoint's change from 1,000 Services on", r.exponent(rig.NFTables, 1000, changeCost), 0.1, "")
		v.most(who+"memory at rest", nkp.SettledMemory, 120, "MB")
		if r := nkp.Repair; r != nil {
			v.most(who+"serving again after nft flush ruleset", cmp.Or(r.Took, r.Limit).Seconds(), 3, "s")
			v.most(who+"wrong answers meanwhile", float64(r.Wrong), 0, "")
		}
		for _, peer := range r.control(rig.KubeNft) {
			if peer.Services == nkp.Services {
				v.least(who+"one endpoint's change, times faster than kube-proxy nftables", changeCost(peer)/changeCost(nkp), 5, "×")
			}
		}
	}
	for _, d := range r.Data {
		for _, peer := range r.Data {
			if d.Kind == rig.NFTables && peer.Kind == rig.KubeNft && peer.Services == d.Services {
				v.shares(who, fmt.Sprintf(" at %d Services", d.Services), &d, &peer)
			}
		}
	}
}

// huge judges nkp on Open vSwitch at the sizes of -huge. Of the other proxies it is only recorded what they take there.
func (v *verdicts) huge(r *Results) {
	var change []report.Point
	for _, c := range r.Control {
		if c.Kind != rig.NKP || c.Endpoints == rig.Endpoints {
			continue
		}
		if c.Endpoints == hugeSizes[0].endpoints {
			change = append(change, report.Point{Services: float64(c.Services), Cost: changeCost(c)})
		}
		if c.Services == hugeSizes[0].services {
			continue
		}
		at := c.size() + ": "
		v.most(at+"start", c.Start().Seconds(), 6, "s")
		v.most(at+"one endpoint's change, p99", milli(quantile(c.Change, 99)), 50, "ms")
		v.most(at+"memory at rest", c.SettledMemory, 300, "MB")
		v.most(at+"memory at its peak", c.PeakMemory, 450, "MB")
	}
	if e, ok := report.Exponent(change); ok {
		v.most("exponent of one endpoint's change from 1,000 to 50,000 Services", e, 0.1, "")
	}
}

func missed(list []verdict) (out []string) {
	for _, v := range list {
		if v.missed() {
			out = append(out, fmt.Sprintf("%s: %.3g%s", v.what, v.got, v.unit))
		}
	}
	return out
}

func verdictTable(list []verdict) report.Table {
	t := report.Table{Title: "What must hold", Header: []string{"", "measured", "target", ""},
		Remarks: "In brackets the 95 % confidence interval, by bootstrap over the rounds, of a share that is compared between two proxies: " +
			"they are measured one after the other. A difference is shown if the interval is on one side of the target."}
	for _, v := range list {
		side, result := "≥", "holds"
		if v.upper {
			side = "≤"
		}
		switch {
		case v.missed():
			result = "MISSED"
		case !v.holds():
			result = "no difference shown"
		}
		got := fmt.Sprintf("%.3g %s", v.got, v.unit)
		if v.within != [2]float64{} {
			got += fmt.Sprintf("(%.3g to %.3g)", v.within[0], v.within[1])
		}
		t.Add(v.what, got, fmt.Sprintf("%s %g %s", side, v.want, v.unit), result)
	}
	return t
}

// control returns the measurements of one proxy, by the number of Services; without the sizes of -huge, which huge judges.
func (r *Results) control(k rig.Kind) (list []Control) {
	for _, c := range r.Control {
		if c.Kind == k && c.Endpoints == rig.Endpoints {
			list = append(list, c)
		}
	}
	return list
}

// points returns a cost of one proxy by the number of Services.
func (r *Results) points(k rig.Kind, cost func(Control) float64) (list []report.Point) {
	for _, c := range r.control(k) {
		list = append(list, report.Point{Services: float64(c.Services), Cost: cost(c)})
	}
	return list
}

// exponent returns how a cost grows from a number of Services on. If it cannot be computed it is very large, so that no target
// holds by a lack of points.
func (r *Results) exponent(k rig.Kind, from float64, cost func(Control) float64) float64 {
	e, ok := report.Exponent(slices.DeleteFunc(r.points(k, cost), func(p report.Point) bool { return p.Services < from }))
	if !ok {
		return 99
	}
	return e
}

func milli(d time.Duration) float64 { return d.Seconds() * 1000 }

func startCost(c Control) float64  { return c.Start().Seconds() }
func changeCost(c Control) float64 { return milli(quantile(c.Change, 50)) }
func memoryCost(c Control) float64 { return c.SettledMemory }
