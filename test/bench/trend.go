//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// A ratio is a cost or a rate of nkp's beside that of a reference, which was measured in turns with it or, for what needs
// kube-proxy, in the same run.
type ratio struct {
	What string
	// Value has its 95 % confidence interval in Within.
	Value  float64
	Within [2]float64
	// MoreIsBetter: a rate. Otherwise it is a cost.
	MoreIsBetter bool
}

// worse reports whether a ratio is on the bad side of a recorded one by more than both scatter.
func (r ratio) worse(recorded ratio) bool {
	if r.MoreIsBetter {
		return r.Within[1] < recorded.Within[0]
	}
	return r.Within[0] > recorded.Within[1]
}

// ratios returns what -trend compares. The plan's rounds are many enough for an interval of each.
func ratios(r *Results) (list []ratio) {
	add := func(what string, moreIsBetter bool, ours, reference []float64, of func([]float64) float64) {
		list = append(list, ratio{what, of(ours) / of(reference), bootstrap(ours, reference, of), moreIsBetter})
	}
	if f := r.Floor; f != nil {
		add("programming, of ovs-ofctl --bundle", false, f.NKP, f.Ofctl, slices.Min)
	}
	for _, c := range r.Control {
		if c.Kind == rig.KubeNft || c.Kind == rig.KubeLegacy || len(c.Change) == 0 {
			continue
		}
		for _, peer := range r.control(rig.KubeNft) {
			if peer.Services == c.Services {
				add(fmt.Sprintf("%s: one endpoint's change, of kube-proxy nftables's", c.Kind), false, seconds(c.Change), seconds(peer.Change), median)
			}
		}
	}
	for _, d := range r.Data {
		if d.Kind == rig.KubeNft || d.Kind == rig.KubeLegacy {
			continue
		}
		share := func(what string, moreIsBetter bool, p Pairs) {
			if len(p) > 0 {
				list = append(list, ratio{fmt.Sprintf("%s: %s, of direct", d.Kind, what), p.Ratio(), p.within(), moreIsBetter})
			}
		}
		share("throughput", true, d.Throughput)
		share("request latency p50", false, d.Latency50)
		share("new connections, 1 client", true, d.Connections1)
		share("new connections, 8 clients", true, d.Connections8)
		share("switch CPU per connection", false, d.SwitchCPU)
		share("time of a refusal", false, d.Refusal)
	}
	for _, e := range r.Events {
		list = append(list, ratio{e.What, e.Rounds.Ratio(), e.Rounds.within(), e.MoreIsBetter})
	}
	return list
}

// drawings is how often a bootstrap draws, from a fixed seed: the same interval for the same measurements.
const drawings = 2000

// interval returns the 95 % confidence interval of what draw computes of one sample after the other.
func interval(draw func(*rand.Rand) float64) [2]float64 {
	rng := rand.New(rand.NewPCG(1, 2))
	list := make([]float64, drawings)
	for i := range list {
		list[i] = draw(rng)
	}
	slices.Sort(list)
	return [2]float64{list[drawings/40], list[drawings-1-drawings/40]}
}

// resample draws as many elements as the list has, each as likely as any other.
func resample[T any](rng *rand.Rand, list []T) []T {
	drawn := make([]T, len(list))
	for i := range drawn {
		drawn[i] = list[rng.IntN(len(list))]
	}
	return drawn
}

// bootstrap returns the interval of the quotient of one figure of two lists that were measured apart.
func bootstrap(a, b []float64, of func([]float64) float64) [2]float64 {
	return interval(func(rng *rand.Rand) float64 { return of(resample(rng, a)) / of(resample(rng, b)) })
}

// within returns the interval of the pairs' ratio.
func (p Pairs) within() [2]float64 {
	return interval(func(rng *rand.Rand) float64 { return Pairs(resample(rng, p)).Ratio() })
}

func seconds(list []time.Duration) (out []float64) {
	for _, d := range list {
		out = append(out, d.Seconds())
	}
	return out
}

// trend compares a run with the recorded one, or records it. The table says of each ratio what it was and is.
func trend(r *Results, file string, record bool) (t report.Table, worse []string, err error) {
	now := ratios(r)
	if record {
		data, err := json.MarshalIndent(now, "", " ")
		if err != nil {
			return t, nil, err
		}
		return t, nil, os.WriteFile(file, append(data, '\n'), 0o644)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return t, nil, err
	}
	var list []ratio
	if err := json.Unmarshal(data, &list); err != nil {
		return t, nil, fmt.Errorf("%s: %w", file, err)
	}
	recorded := map[string]ratio{}
	for _, old := range list {
		recorded[old.What] = old
	}

	t = report.Table{
		Title: "Trend", Header: []string{"", "recorded", "now", ""},
		Remarks: "In brackets the 95 % confidence interval. A ratio is worse, or better, if the intervals do not meet.",
	}
	for _, r := range now {
		old, known := recorded[r.What]
		delete(recorded, r.What)
		mirrored := r
		mirrored.MoreIsBetter = !r.MoreIsBetter
		verdict := "no difference shown"
		switch {
		case !known:
			verdict = "not recorded"
		case r.worse(old):
			verdict = "WORSE"
			worse = append(worse, r.What)
		case mirrored.worse(old):
			verdict = "better"
		}
		t.Add(r.What, old.String(), r.String(), verdict)
	}
	for what := range recorded { // a figure that is gone is no figure that is well
		worse = append(worse, what+" (recorded, and not measured)")
	}
	slices.Sort(worse)
	return t, worse, nil
}

func (r ratio) String() string {
	if r.Within == [2]float64{} {
		return "–"
	}
	return fmt.Sprintf("%.3g (%.3g to %.3g)", r.Value, r.Within[0], r.Within[1])
}
