//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// besideShapes are large Services by name: each close to --cost-limit (320,000), but for limit, which is close to
// --cost-limit-node.
var besideShapes = map[string]struct {
	rig.Large
	number   int
	nftPorts int // with nftables, which makes more of some
}{
	"addresses":  {rig.Large{Ports: 300, Addresses: 1000, Endpoints: 2}, 1, 70},
	"endpoints":  {rig.Large{Ports: 34, Endpoints: 1000}, 1, 60},
	"consistent": {rig.Large{Ports: 280, Endpoints: 10, Consistent: true}, 1, 280},
	"limit":      {rig.Large{Ports: 300, Addresses: 1000, Endpoints: 2}, 13, 70},
}

// beside measures what a large Service costs a small one: how long the small one's changes take, one after the other, while the
// large one is added and deleted, and when each serves at a start.
func beside(ctx context.Context, programs rig.Programs, root, only, shapes string) error {
	kinds := map[string][]rig.Kind{"": {rig.NKP, rig.NFTables}, "nkp": {rig.NKP}, "nkp-nftables": {rig.NFTables}, "nkp-iptables": {rig.IPTables}}[only]
	names := strings.Split(shapes, ",")
	if shapes == "all" {
		names = slices.DeleteFunc(slices.Sorted(maps.Keys(besideShapes)), func(n string) bool { return n == "limit" })
	}
	for _, n := range names {
		if _, ok := besideShapes[n]; !ok || kinds == nil {
			return fmt.Errorf("-beside %s -only %q: one of %v, or all, of nkp, nkp-nftables or nkp-iptables can be measured", n, only, slices.Sorted(maps.Keys(besideShapes)))
		}
	}
	dir, err := os.MkdirTemp("", "nkp-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := programs.BuildNKP(ctx, root, dir); err != nil {
		return err
	}
	t := report.Table{
		Title: "A small Service's changes beside a large Service",
		Header: []string{"", "small alone: p50", "beside: p50", "max", "changes", "large added in", "deleted in",
			"start: small serves", "all", "nkp, MB: now", "peak", "switch, MB"},
	}
	for _, name := range names {
		for _, kind := range kinds {
			if err := besideOne(ctx, programs, kind, name, &t); err != nil {
				return fmt.Errorf("%s, %s: %w", kind, name, err)
			}
		}
	}
	fmt.Println(report.Text(t))
	return nil
}

func besideOne(ctx context.Context, programs rig.Programs, kind rig.Kind, name string, t *report.Table) error {
	shape := besideShapes[name]
	if kind != rig.NKP {
		shape.Ports = shape.nftPorts
	}
	return withNodeAlone(ctx, kind, aloneServices, programs, func(m *measurement) error {
		if kind == rig.NKP { // the cost is that of the bridge alone
			m.Proxy.Stop()
			m.Flags = []string{"--host-traffic", "ovs"}
			if err := m.Start(); err != nil {
				return err
			}
		}
		var took []time.Duration
		moves := 0
		move := func() error {
			moves++
			pod := rig.RemotePod(moves % rig.Endpoints)
			begin := time.Now()
			frontend, err := m.PutMover(pod)
			if err != nil {
				return err
			}
			d, err := m.Reach(ctx, frontend, pod, begin)
			took = append(took, d)
			return err
		}
		// during moves the small Service until all that was written to the manifests is in force.
		during := func(number int) (all time.Duration, err error) {
			begin := time.Now()
			if err := m.PutLarge(shape.Large, number); err != nil {
				return 0, err
			}
			done := make(chan error, 1)
			go func() { // ends with nkp's answer
				time.Sleep(200 * time.Millisecond) // nkp has seen the file
				_, err := m.inStep()
				all = time.Since(begin)
				done <- err
			}()
			for {
				select {
				case err := <-done:
					return all, err
				case <-time.After(20 * time.Millisecond):
				}
				if err := move(); err != nil {
					return 0, err
				}
			}
		}

		for range 1 + aloneMoves { // the Service is new at the first
			if err := move(); err != nil {
				return err
			}
		}
		alone := quantile(took[1:], 50)
		took = nil
		added, err := during(shape.number)
		if err != nil {
			return err
		}
		if status, err := m.inStep(); err != nil || strings.Contains(status, "is not served") {
			return fmt.Errorf("the large Service is not served: %v\n%s", err, status)
		}
		now, most, err := rig.Resident(m.Proxy.PID())
		if err != nil {
			return err
		}
		switchNow := 0.0
		if kind == rig.NKP {
			if switchNow, _, err = rig.Resident(m.VswitchdPID()); err != nil {
				return err
			}
		}
		deleted, err := during(0)
		if err != nil {
			return err
		}

		if err := m.PutLarge(shape.Large, shape.number); err != nil {
			return err
		}
		m.Proxy.Stop()
		how := []string{"cleanup", "--mode", "ovs", "--ovsdb", m.DB(), "--bridge", m.Bridge}
		if kind != rig.NKP {
			how = []string{"cleanup", "--mode", map[rig.Kind]string{rig.NFTables: "nftables", rig.IPTables: "iptables"}[kind]}
		}
		if _, err := m.RunNKP(how...); err != nil {
			return err
		}
		begin := time.Now()
		if err := m.Start(); err != nil {
			return err
		}
		small, err := m.Reach(ctx, rig.Mover(rig.Movers).Frontend(), "", begin)
		if err != nil {
			return err
		}
		if _, err := m.inStep(); err != nil {
			return err
		}
		all := time.Since(begin)
		t.Add(fmt.Sprintf("%s, %s", kind, name), short(alone), short(quantile(took, 50)), short(slices.Max(took)), fmt.Sprint(len(took)),
			short(added), short(deleted), short(small), short(all), fmt.Sprintf("%.0f", now), fmt.Sprintf("%.0f", most), fmt.Sprintf("%.0f", switchNow))
		return nil
	})
}

// aloneMoves are the small Service's changes before there is a large one. All changes wait for the files to rest, 50 ms.
const aloneMoves = 11

// besideLimit bounds the wait for all that was written.
const besideLimit = 5 * time.Minute

// inStep waits until nkp says that all is in force.
func (m *measurement) inStep() (status string, err error) {
	for begin := time.Now(); time.Since(begin) < besideLimit; {
		status, err = m.RunNKP("status", "--wait", "--timeout", "5s", "--socket", m.Socket())
		if err == nil {
			break
		}
	}
	return status, err
}
