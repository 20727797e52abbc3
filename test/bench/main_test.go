//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
)

func ms(list ...float64) (out []time.Duration) {
	for _, v := range list {
		out = append(out, time.Duration(v*float64(time.Millisecond)))
	}
	return out
}

// good are results that miss no target.
func good() *Results {
	r := &Results{Full: true, Kube: "v1.99.1", Machine: report.Machine{Cores: 2, CPU: "some CPU"}, Floor: &Floor{Objects: 20_000, NKP: []float64{150, 120}, Ofctl: []float64{240, 250}}}
	for i, n := range []int{100, 1000, 10_000} {
		slow := float64(int(1) << (4 * i))
		r.Control = append(r.Control,
			Control{Kind: rig.NKP, Services: n, Starts: ms(300, 400, 900), Change: ms(4, 5, 9), SettledMemory: 60, IdleCPU: 0.001, AllocatedPerChange: 50_000},
			Control{Kind: rig.NFTables, Services: n, Starts: ms(400), Change: ms(4, 5, 9), SettledMemory: 90, TableMemory: 20,
				Repair: &Repair{Took: 700 * time.Millisecond, Limit: time.Minute, Asked: 99, Held: 20, Kept: 20}},
			Control{Kind: rig.KubeNft, Services: n, Starts: ms(90 * slow), Change: ms(20 * slow), SettledMemory: 250, TableMemory: 80,
				Repair: &Repair{Limit: time.Minute, Asked: 5000, Wrong: 3, Unanswered: 4997, Held: 20}},
			Control{Kind: rig.KubeLegacy, Services: n, Starts: ms(80 * slow), Change: ms(10 * slow), SettledMemory: 300, TableMemory: 50})
		same := Pairs{{VIP: 99, Direct: 100}, {VIP: 98, Direct: 100}}
		r.Data = append(r.Data,
			Data{Kind: rig.NKP, Services: n, Throughput: same, Latency50: same, Latency99: same, Connections1: same, Connections8: same, SwitchCPU: same, Refusal: same},
			Data{Kind: rig.NFTables, Services: n, Throughput: same, Latency50: same, Latency99: same, Connections1: same, Connections8: same},
			Data{Kind: rig.KubeNft, Services: n, Throughput: Pairs{{80, 100}}, Latency50: same, Latency99: same, Connections1: same, Connections8: Pairs{{70, 100}}})
	}
	for i := range r.Control {
		r.Control[i].Endpoints = rig.Endpoints
	}
	// At the sizes of -huge targets speak of nkp on Open vSwitch only.
	r.Control = append(r.Control,
		Control{Kind: rig.NKP, Services: 1000, Endpoints: 5, Starts: ms(400), Change: ms(4, 5, 9), SettledMemory: 60},
		Control{Kind: rig.NKP, Services: 50_000, Endpoints: 5, Starts: ms(5000), Change: ms(4, 5, 9), SettledMemory: 250, PeakMemory: 400},
		Control{Kind: rig.NFTables, Services: 50_000, Endpoints: 5, Starts: ms(99_000), Change: ms(999), SettledMemory: 999, TableMemory: 999},
		Control{Kind: rig.KubeNft, Services: 50_000, Endpoints: 5, GaveUp: 2 * time.Minute, Served: 0.25, PeakMemory: 900})
	p := Phase{Took: time.Second, Load: rig.Load{Requests: 200, Watches: 200, CPU: time.Second}, FromServer: 50e6}
	r.Fleet = &Fleet{Agents: 50, Services: 1000, Start: p, Changing: p, Idle: Phase{Took: time.Second}, Changes: 20, Reached: ms(3, 4), Last: ms(5)}
	return r
}

func TestJudge(t *testing.T) {
	if list := judge(good()); len(list) < 20 || len(missed(list)) > 0 {
		t.Errorf("%d verdicts, missed %q", len(list), missed(list))
	}
	for want, spoil := range map[string]func(*Results){
		"programming":                              func(r *Results) { r.Floor.NKP = []float64{200} },
		"change, p99":                              func(r *Results) { last4(r).Change = ms(4, 5, 60, 60) },
		"exponent of one endpoint's":               func(r *Results) { last4(r).Change = ms(8, 8, 8) },
		"what one change allocates":                func(r *Results) { last4(r).AllocatedPerChange = 500_000 },
		"CPU at rest":                              func(r *Results) { last4(r).IdleCPU = 0.01 },
		"start, times faster":                      func(r *Results) { last4(r).Starts = ms(9000) },
		"memory":                                   func(r *Results) { last4(r).SettledMemory = 200 },
		"throughput, of direct":                    func(r *Results) { r.Data[0].Throughput = Pairs{{90, 100}} },
		"latency p50":                              func(r *Results) { r.Data[0].Latency50 = Pairs{{110, 100}} },
		"8 clients, of direct":                     func(r *Results) { r.Data[0].Connections8 = Pairs{{90, 100}} },
		"share kept, of kube-proxy":                func(r *Results) { r.Data[2].Connections8 = Pairs{{120, 100}} },
		"at 10000 Services, of those":              func(r *Results) { r.Data[6].Connections8 = Pairs{{90, 100}} },
		"nkp nftables: start":                      func(r *Results) { r.Control[9].Starts = ms(4000) },
		"nkp nftables: exponent":                   func(r *Results) { r.Control[9].Change = ms(8, 8, 8) },
		"nkp nftables: one endpoint's change, p99": func(r *Results) { r.Control[9].Change = ms(4, 5, 40, 40) },
		"nkp nftables: memory":                     func(r *Results) { r.Control[9].SettledMemory = 130 },
		"times faster than kube-proxy nftables":    func(r *Results) { r.Control[10].Change = ms(6) },
		"nkp nftables: serving again":              func(r *Results) { r.Control[9].Repair.Took = 0 },
		"nkp nftables: wrong answers":              func(r *Results) { r.Control[9].Repair.Wrong = 1 },
		"50000 × 5: start":                         func(r *Results) { r.Control[13].Starts = ms(7000) },
		"50000 × 5: memory at rest":                func(r *Results) { r.Control[13].SettledMemory = 301 },
		"50000 × 5: memory at its peak":            func(r *Results) { r.Control[13].PeakMemory = 451 },
		"50000 × 5: one endpoint's change, p99":    func(r *Results) { r.Control[13].Change = ms(4, 5, 60, 60) },
		"from 1,000 to 50,000 Services":            func(r *Results) { r.Control[13].Change = ms(9, 9, 9) },
		"nkp nftables: throughput":                 func(r *Results) { r.Data[7].Throughput = Pairs{{70, 100}} },
	} {
		r := good()
		spoil(r)
		if got := missed(judge(r)); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("missed %q; want %q among them", got, want)
		}
	}
}

// last4 is nkp's at the largest number of Services.
func last4(r *Results) *Control { return &r.Control[8] }

// The README's numbers are the run's, with the version that was measured; what is around them stays.
func TestREADME(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second run finds what the first has written
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := writeREADME(good(), file); err != nil {
			t.Fatal(err)
		}
		if text, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"# nkp\n", "At 10,000 Services an endpoint change takes effect in 5 ms instead of 5.1 s, startup takes 0.4 s instead of 23 s, and memory is 60 MB instead of 250 MB (kube-proxy 1.99.1, nftables mode).\n<!-- end -->\nRestarting",
		"| nkp, Open vSwitch | nkp, nftables | kube-proxy 1.99.1, nftables |", "| resident memory | 60 MB | 90 MB | 250 MB |\n\nkube-proxy's iptables mode in the same run: ", ", 300 MB.\n<!-- end -->",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%.3000s", want, text)
		}
	}
	if err := os.WriteFile(file, []byte("# nkp\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeREADME(good(), file); err == nil {
		t.Error("a README without blocks was written")
	}
}

// Documents name every measurement and every plot is there.
func TestWrite(t *testing.T) {
	docs := t.TempDir()
	if err := write(good(), docs); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"some CPU", "kube-proxy nftables", "nkp 120 ms, `ovs-ofctl --bundle` 240 ms, ratio 0.50", "| nkp | 10000 | 0.40 s | 5.0 ms |", "50 agents",
		"kube-proxy and API server are v1.99.1;", "| nkp nftables | 50000 × 5 | 99 s |", "| kube-proxy nftables | 50000 × 5 | given up after 120 s, 25 % served |", "| 250 MB | 400 MB |", "| kube-proxy nftables | 10000 | not within 60 s | 5000 | 3 | 4997 | – |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("benchmarks.md has no %q", want)
		}
	}
	if strings.Contains(string(text), "NaN") {
		t.Error("benchmarks.md has a NaN")
	}
	for _, f := range figures(good()) {
		if svg, err := os.ReadFile(filepath.Join(docs, plots, f.file+".svg")); err != nil || !strings.Contains(string(svg), "</svg>") {
			t.Errorf("%s: %v", f.file, err)
		}
	}
	text, err = os.ReadFile(filepath.Join(docs, "scale.md"))
	if err != nil || !strings.Contains(string(text), "| watches open | 20000 |") {
		t.Errorf("scale.md: %v\n%s", err, text)
	}
}

func TestPairs(t *testing.T) {
	p := Pairs{{1, 2}, {3, 4}, {9, 10}}
	if p.Ratio() != 0.75 || p.VIP() != 3 || p.Direct() != 4 || Pairs(nil).Ratio() != 0 {
		t.Errorf("ratio %g, VIP %g, direct %g, none %g", p.Ratio(), p.VIP(), p.Direct(), Pairs(nil).Ratio())
	}
	if even := (Pairs{{1, 2}, {3, 4}}); even.Ratio() != 0.625 {
		t.Errorf("ratio of two rounds %g; want their mean", even.Ratio())
	}
}

// The interval of a quotient has the quotient in it, is narrow where rounds agree, and is missing where they are few.
func TestQuotient(t *testing.T) {
	steady := slices.Repeat(Pairs{{100, 100}, {101, 100}, {99, 100}}, 4)
	scattered := slices.Repeat(Pairs{{80, 100}, {95, 100}, {99, 100}, {110, 100}}, 3)
	for _, tc := range []struct {
		name     string
		a, b     Pairs
		low, top float64
	}{
		{"steady", steady, steady, 0.98, 1.02},
		{"less, and scattered", scattered, steady, 0.8, 1.1},
		{"half", slices.Repeat(Pairs{{50, 100}, {51, 100}}, 6), steady, 0.48, 0.52},
	} {
		got := quotient(tc.a, tc.b)
		if q := tc.a.Ratio() / tc.b.Ratio(); got[0] > q || got[1] < q || got[0] < tc.low || got[1] > tc.top || got != quotient(tc.a, tc.b) {
			t.Errorf("%s: %g is in %v; want it within %g to %g", tc.name, q, got, tc.low, tc.top)
		}
	}
	if got := quotient(steady[:7], steady); got != [2]float64{} {
		t.Errorf("of seven rounds: %v", got)
	}
	v := verdict{got: 0.97, want: 1, within: [2]float64{0.94, 1.01}}
	if v.holds() || v.missed() {
		t.Error("a difference within scatter: holds, or missed")
	}
	if v.within[1] = 0.99; !v.missed() {
		t.Error("a difference beyond scatter is not missed")
	}
}

func TestPlan(t *testing.T) {
	if p := fullPlan(false).andHuge(); len(p.byEndpoints()) != 3 || !p.last(p.sizes[len(p.sizes)-4]) || p.last(last(p.sizes)) || !p.full {
		t.Errorf("%+v", p)
	}
	if p := fullPlan(true).andHuge().at("1000x5,50000x5"); len(p.byEndpoints()) != 1 || len(p.sizes) != 2 || p.full {
		t.Errorf("%+v", p)
	}
	p := fullPlan(true).only("nkp,fleet").at("1000")
	if !slices.Equal(p.kinds, []rig.Kind{rig.NKP}) || p.agents == 0 || len(p.sizes) != 1 || p.sizes[0].services != 1000 || p.full {
		t.Errorf("%+v", p)
	}
	if p := fullPlan(false).only("").at(""); !p.full || len(p.kinds) != 4 || !p.last(p.sizes[len(p.sizes)-1]) || p.last(p.sizes[0]) {
		t.Errorf("%+v", p)
	}
}

// A trend is worse if the intervals do not meet on the bad side, or a recorded figure is missing.
func TestTrend(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trend.json")
	atOneSize := func() *Results {
		r := good()
		r.Data, r.Control = r.Data[:3], r.Control[:4]
		r.Events = []Event{{"an event, of the least", false, Pairs{{10, 10}, {11, 10}}}}
		return r
	}
	if _, _, err := trend(atOneSize(), file, true); err != nil {
		t.Fatal(err)
	}
	table, worse, err := trend(atOneSize(), file, false)
	if err != nil || len(worse) > 0 || len(table.Rows) < 10 {
		t.Errorf("the same run: %d rows, worse %q, %v", len(table.Rows), worse, err)
	}
	for want, spoil := range map[string]func(*Results){
		"programming, of ovs-ofctl --bundle":                               func(r *Results) { r.Floor.NKP = []float64{200, 210} },
		"nkp: throughput, of direct":                                       func(r *Results) { r.Data[0].Throughput = Pairs{{90, 100}, {91, 100}} },
		"nkp: switch CPU per connection, of direct":                        func(r *Results) { r.Data[0].SwitchCPU = Pairs{{110, 100}} },
		"nkp: time of a refusal, of direct":                                func(r *Results) { r.Data[0].Refusal = Pairs{{110, 100}} },
		"nkp nftables: one endpoint's change, of kube-proxy nftables's":    func(r *Results) { r.Control[1].Change = ms(400, 500) },
		"an event, of the least":                                           func(r *Results) { r.Events[0].Rounds = Pairs{{12, 10}} },
		"nkp: request latency p50, of direct (recorded, and not measured)": func(r *Results) { r.Data[0].Latency50 = nil },
	} {
		r := atOneSize()
		spoil(r)
		if _, worse, err := trend(r, file, false); err != nil || !slices.Equal(worse, []string{want}) {
			t.Errorf("worse %q, %v; want %q", worse, err, want)
		}
	}
}

// What ovs-vswitchd prints of its main thread is read in the form of 3.1 and in that of 4.0, both captured.
func TestMegaflowHits(t *testing.T) {
	for name, c := range map[string]struct {
		text        string
		found, mean float64
	}{
		"3.1.0": {`main thread:
  packets received: 28
  emc hits: 0
  megaflow hits: 17
  avg. subtable lookups per megaflow hit: 2.47
  miss with success upcall: 10
`, 17, 2.47},
		"4.0.90": {`
Time: 12:17:57.125
Measurement duration: 0.153 s

main thread:

  Rx packets:                   28  (0 Kpps)
  Datapath passes:              28  (1.00 passes/pkt)
  - Simple Match hits:           1  (  3.6 %)
  - EMC hits:                    0  (  0.0 %)
  - Megaflow hits:              17  ( 60.7 %, 2.00 subtbl lookups/hit)
  - Upcalls:                    10  ( 35.7 %)
`, 17, 2},
	} {
		if found, mean := megaflowHits(c.text); found != c.found || mean != c.mean {
			t.Errorf("%s: %v, %v", name, found, mean)
		}
	}
	for version, want := range map[string]string{"3.1.0": "stats", "3.7.1": "stats", "4.0.90": "perf", "10.1": "perf", "": "stats"} {
		if got := statsCommand(version); got != "dpif-netdev/pmd-"+want+"-show" {
			t.Errorf("%q: %s", version, got)
		}
	}
}
