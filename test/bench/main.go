//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/bench/traffic"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// trafficCommand makes this binary the client of package traffic.
const trafficCommand = "traffic"

// defaultClients connect side by side while -profile is at work.
const defaultClients = 8

func main() {
	if len(os.Args) > 1 && os.Args[1] == trafficCommand {
		os.Exit(traffic.Main(os.Args[2:]))
	}
	var programs rig.Programs
	quick := flag.Bool("quick", false, "up to 1,000 Services, short rounds, nothing written")
	withHuge := flag.Bool("huge", false, "at last 50,000 Services with 5 endpoints and 5,000 with 50, too (alone: with -sizes 1000x5,50000x5,5000x50)")
	root := flag.String("root", ".", "the repository; docs/benchmarks.md, docs/scale.md and the numbers of README.md are written there")
	raw := flag.String("raw", "", "keep the measurements in this file, as JSON")
	render := flag.String("render", "", "measure nothing: write the documents and judge the targets from a file that -raw wrote")
	trendFile := flag.String("trend", "", "measure ratios beside their references at 1,000 Services, and compare them with those in this file; status 1 if one is worse")
	record := flag.Bool("record", false, "with -trend: write the file instead")
	only := flag.String("only", "", "comma-separated: nkp, nkp-nftables, nftables, iptables, fleet (default: all)")
	sizes := flag.String("sizes", "", "comma-separated numbers of Services, of those that the run has, with -huge also such as 50000x5 (default: all)")
	bare := flag.Bool("alone", false, "VIP against direct, by nkp in Open vSwitch and by nkp in iptables (-only nkp: not the second), without an API server, at any -sizes (default: 10); nothing written, nothing judged")
	pairs := flag.Int("profile", 0, "profile, by perf, while connections come to the VIP and straight to the pods, so many times each in turns: of nkp, whose switch needs symbols and frame pointers (NKP_OVS), or (-only nftables, iptables) of kube-proxy, or (-only nkp-nftables, nkp-iptables) of nkp's other modes; at any -sizes (default: 10)")
	large := flag.String("beside", "", "how long a small Service's change takes while a large one is programmed, and what both take at a start: comma-separated shapes, or all; -only nkp, nkp-nftables or nkp-iptables (default: the first two); nothing written, nothing judged")
	clients := flag.Int("clients", defaultClients, "how many clients connect side by side while -profile is at work")
	flag.StringVar(&programs.NKP, "nkp", os.Getenv("NKP_BINARY"), "nkp (default: built)")
	flag.StringVar(&programs.KubeServer, "kubeserver", os.Getenv("NKP_KUBESERVER"), "API server of test/k8s/e2e (default: built)")
	flag.StringVar(&programs.KubeProxy, "kube-proxy", os.Getenv("NKP_KUBE_PROXY"), "kube-proxy (default: built)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *pairs == 0 && *clients != defaultClients {
		fmt.Fprintln(os.Stderr, "bench: -clients is for -profile only")
		os.Exit(1)
	}
	if *record && *trendFile == "" {
		fmt.Fprintln(os.Stderr, "bench: -record is for -trend only")
		os.Exit(1)
	}
	if *large != "" {
		if err := beside(ctx, programs, *root, *only, *large); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if *bare || *pairs != 0 {
		if err := withoutAPI(ctx, programs, *root, *only, *sizes, *clients, *pairs); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	p := planned(*quick, *withHuge).only(*only).at(*sizes)
	if *trendFile != "" {
		p = trendPlan()
	}
	r, err := results(ctx, *render, programs, *root, p)
	if *raw != "" && *render == "" && r != nil { // half a run's measurements are kept, too
		err = errors.Join(err, save(*raw, r))
	}
	if err == nil && r.Full {
		err = errors.Join(write(r, filepath.Join(*root, "docs")), writeREADME(r, filepath.Join(*root, "README.md")))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	fmt.Println(tables(r, report.Text))
	if *trendFile != "" {
		table, worse, err := trend(r, *trendFile, *record)
		if err == nil && len(worse) > 0 {
			err = fmt.Errorf("worse than %s: %s", *trendFile, strings.Join(worse, "; "))
		}
		if !*record {
			fmt.Println(report.Text(table))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	verdicts := judge(r)
	fmt.Println(report.Text(verdictTable(verdicts)))
	if missed := missed(verdicts); len(missed) > 0 {
		fmt.Printf("missed: %s\n", strings.Join(missed, "; "))
		os.Exit(1)
	}
}

func planned(quick, withHuge bool) plan {
	p := fullPlan(quick)
	if withHuge {
		return p.andHuge()
	}
	return p
}

// results measures, or reads what was measured before.
func results(ctx context.Context, file string, programs rig.Programs, root string, p plan) (*Results, error) {
	if file == "" {
		return run(ctx, programs, root, p)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r Results
	return &r, json.Unmarshal(data, &r)
}

func save(file string, r *Results) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// Results are all measurements of a run.
type Results struct {
	Full    bool // not a quick run
	Machine report.Machine
	Kube    string        // version of kube-proxy and API server
	Took    time.Duration // without building the programs
	Control []Control
	Data    []Data
	Floor   *Floor // nil: nkp was left out
	Fleet   *Fleet // nil: it was left out
	Events  []Event
}

// run does everything there is in a plan.
func run(ctx context.Context, programs rig.Programs, root string, p plan) (r *Results, err error) {
	if err := errors.Join(testbed.OVS.Available(), testbed.Linux.Available()); err != nil {
		return nil, err
	}
	r = &Results{Full: p.full, Machine: report.ThisMachine(), Kube: testbed.KubeVersion}
	// What an API server has once, it keeps: Services with another number of endpoints need another one.
	for _, same := range p.byEndpoints() {
		if err := withAPI(ctx, programs, root, func(api *rig.API, programs rig.Programs) error { return r.measureAll(ctx, p, same, api, programs) }); err != nil {
			return r, err
		}
	}
	return r, nil
}

// measureAll measures at numbers of Services that grow.
func (r *Results) measureAll(ctx context.Context, p plan, sizes []size, api *rig.API, programs rig.Programs) (err error) {
	begin := time.Now()
	defer func() { r.Took += time.Since(begin) }()
	done := 0
	for _, size := range sizes {
		if err := api.Fill(ctx, done, size.services, size.each()); err != nil {
			return err
		}
		done = size.services
		for _, kind := range p.kinds {
			if size.leavesOut(kind) {
				continue
			}
			if err := measure(ctx, r, p, size, kind, api, programs); err != nil {
				return fmt.Errorf("%s at %d Services: %w", kind, size.services, err)
			}
		}
		if size.fleet && p.agents > 0 {
			if r.Fleet, err = measureFleet(ctx, p, size.services, api, programs); err != nil {
				return fmt.Errorf("fleet: %w", err)
			}
		}
	}
	if p.events > 0 {
		r.Events, err = measureEvents(ctx, p.events, done, programs)
	}
	return err
}

// withAPI builds the programs that are not there yet, and calls do with them and an API server that has the objects of every
// run.
func withAPI(ctx context.Context, programs rig.Programs, root string, do func(*rig.API, rig.Programs) error) (err error) {
	dir, err := os.MkdirTemp("", "nkp-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("building what is not there yet; the first time takes minutes")
	if err := programs.Build(ctx, root, dir); err != nil {
		return err
	}
	api, err := rig.StartAPI(ctx, programs, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	if err := api.FillSpecial(ctx); err != nil {
		return err
	}
	return do(api, programs)
}

// measure starts one proxy at one number of Services and measures it.
func measure(ctx context.Context, r *Results, p plan, size size, kind rig.Kind, api *rig.API, programs rig.Programs) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return withNode(ctx, p, size, kind, api, programs, func(m *measurement) error {
		c := Control{Kind: kind, Services: size.services, Endpoints: size.each()}
		if err := m.starts(ctx, &c, r); err != nil {
			return err
		}
		if c.GaveUp != 0 {
			r.Control = append(r.Control, c)
			return nil
		}
		if size.control {
			if err := m.control(ctx, &c); err != nil {
				return err
			}
		}
		if size.data {
			d, err := m.data(ctx)
			if err != nil {
				return err
			}
			r.Data = append(r.Data, d)
		}
		if size.control {
			if err := m.tables(ctx, &c); err != nil {
				return err
			}
			r.Control = append(r.Control, c)
		}
		return nil
	})
}

// withNode calls measure on a node where no proxy runs yet.
func withNode(ctx context.Context, p plan, size size, kind rig.Kind, api *rig.API, programs rig.Programs, measure func(*measurement) error) (err error) {
	n, err := rig.NewNode(ctx, kind, api, programs)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && n.Proxy != nil {
			err = fmt.Errorf("%w\nthe end of its log:\n%s", err, n.Proxy.Log())
		}
		err = errors.Join(err, n.Close())
	}()
	if kind == rig.KubeLegacy {
		if err := n.WithLegacyIPTables(); err != nil {
			return err
		}
	}
	return measure(&measurement{Node: n, api: api, services: size.services, plan: p, size: size})
}

// measurement is one proxy on its node while it is measured.
type measurement struct {
	*rig.Node
	api      *rig.API
	services int
	plan     plan
	size     size
}

func (m *measurement) say(format string, args ...any) {
	say("%6d Services, %-19s %s", m.services, m.Kind, fmt.Sprintf(format, args...))
}

var began = time.Now()

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}
