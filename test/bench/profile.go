//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/bench/traffic"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// legTime is how long one side is at work at a stretch while it is profiled: long beside the start of perf.
const legTime = 5 * time.Second

// profile returns where the machine's time goes for new connections, through the VIP and straight to the pods, by
// perf. A switch that forwards must have symbols and frame pointers; a distribution's has neither (NKP_OVS names another one).
func profile(ctx context.Context, kind rig.Kind, programs rig.Programs, root string, services, clients, pairs int) error {
	if err := errors.Join(testbed.OVS.Available(), testbed.Linux.Available()); err != nil {
		return err
	}
	if _, err := exec.LookPath("perf"); err != nil {
		return fmt.Errorf("%w: apt-get install linux-perf", err)
	}
	var vip, direct legs
	measure := func(m *measurement) error { return m.profile(ctx, &vip, &direct, clients, pairs) }
	var err error
	if !kind.OfKubernetes() {
		err = withNodeAlone(ctx, kind, services, programs, measure)
	} else {
		err = withAPI(ctx, programs, root, func(api *rig.API, programs rig.Programs) error {
			if err := api.Fill(ctx, 0, services, rig.Endpoints); err != nil {
				return err
			}
			return withNode(ctx, fullPlan(false), size{services: services}, kind, api, programs, func(m *measurement) error {
				begin := time.Now()
				if err := m.Start(); err != nil {
					return err
				}
				if _, err := m.reachAll(ctx, begin); err != nil {
					return err
				}
				return measure(m)
			})
		})
	}
	if err != nil {
		return err
	}
	fmt.Println(report.Text(profileTable(kind, services, clients, &vip, &direct)))
	return nil
}

// profile lets both sides work in turns.
func (m *measurement) profile(ctx context.Context, vip, direct *legs, clients, pairs int) error {
	to, against := dataTargets()
	for i := range pairs { // each side comes first in every second pair (see data)
		sides := []struct {
			*legs
			to []string
		}{{vip, to}, {direct, against}}
		if i%2 == 1 {
			slices.Reverse(sides)
		}
		if err := m.forgetFlows(); err != nil {
			return err
		}
		for _, s := range sides {
			if err := m.warm(ctx, s.to); err != nil {
				return err
			}
		}
		for _, s := range sides {
			if err := m.leg(ctx, s.legs, clients, s.to); err != nil {
				return err
			}
		}
		m.say("pair %d of %d is profiled", i+1, pairs)
	}
	return nil
}

// legs is what perf and the switch say of all legs of one side.
type legs struct {
	samples
	done             int     // connections
	searches, masked float64 // of cached flows by mask: those that found one, and the masks that were searched for it
}

// leg profiles one side for legTime.
func (m *measurement) leg(ctx context.Context, l *legs, clients int, to []string) error {
	work := func() error {
		r, err := m.traffic(ctx, traffic.Options{Targets: to, Clients: clients, Duration: legTime, Connect: true})
		l.done += r.Done
		return err
	}
	if !m.switchForwards() {
		return l.perf(ctx, work)
	}
	l.pid = m.VswitchdPID()
	if _, err := m.Appctl("dpif-netdev/pmd-stats-clear"); err != nil {
		return err
	}
	if err := l.perf(ctx, work); err != nil {
		return err
	}
	out, err := m.Appctl(statsCommand(m.Version())) // of its main thread, which forwards
	if err != nil {
		return err
	}
	found, mean := megaflowHits(out)
	if found == 0 {
		return fmt.Errorf("ovs-vswitchd reports no hit of a cached flow: %s", out)
	}
	l.searches += found
	l.masked += found * mean
	return nil
}

// statsCommand returns the command that shows what the main thread of an Open vSwitch did. From 4.0 on that is pmd-perf-show, which
// leaves that thread out before.
func statsCommand(version string) string {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= 4 {
		return "dpif-netdev/pmd-perf-show"
	}
	return "dpif-netdev/pmd-stats-show"
}

// megaflowHits returns how often a cached flow was found by its mask, and how many masks were searched for it on average, from what
// either command prints.
func megaflowHits(text string) (found, mean float64) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		_, _ = fmt.Sscanf(line, "megaflow hits: %f", &found)
		_, _ = fmt.Sscanf(line, "avg. subtable lookups per megaflow hit: %f", &mean)

		var percent float64
		_, _ = fmt.Sscanf(line, "- Megaflow hits: %f ( %f %%, %f subtbl lookups/hit)", &found, &percent, &mean)
	}
	return found, mean
}

// profileTable returns microseconds for each connection, and the functions that differ most.
func profileTable(kind rig.Kind, services, clients int, vip, direct *legs) report.Table {
	t := report.Table{
		Title:  fmt.Sprintf("%s: the machine's time for a new connection at %d Services, clients: %d, µs: %d connections to the VIP, %d direct", kind, services, clients, vip.done, direct.done),
		Header: []string{"", "VIP", "direct", "more", ""},
	}
	each := func(l *legs, what float64) float64 { return what / float64(max(1, l.done)) / 1000 }
	row := func(name string, v, d, of float64) {
		t.Add(name, fmt.Sprintf("%.1f", v), fmt.Sprintf("%.1f", d), fmt.Sprintf("%+.1f", v-d), fmt.Sprintf("%+.1f %%", 100*(v-d)/of))
	}
	sum := func(l *legs, list []activity) (all float64) {
		for _, a := range list {
			all += each(l, l.activity[a.name])
		}
		return all
	}
	parts := func(name string, list []activity) (v, d float64) {
		v, d = sum(vip, list), sum(direct, list)
		for _, a := range list {
			if vip.activity[a.name]+direct.activity[a.name] > 0 {
				row(a.name, each(vip, vip.activity[a.name]), each(direct, direct.activity[a.name]), d)
			}
		}
		row(name, v, d, d)
		return v, d
	}
	if vip.pid != 0 {
		v, d := parts("ovs-vswitchd together", switchActivities)
		v2, d2 := parts("the others together", besideSwitch)
		row("the machine", v+v2, d+d2, d+d2)
		t.Add("searches of cached flows", fmt.Sprintf("%.2f", 1000*each(vip, vip.searches)), fmt.Sprintf("%.2f", 1000*each(direct, direct.searches)), "", "")
		t.Add("masks searched each time", fmt.Sprintf("%.2f", vip.masked/max(1, vip.searches)), fmt.Sprintf("%.2f", direct.masked/max(1, direct.searches)), "", "")
	} else {
		parts("the machine", kernelForwards)
	}
	more := func(f string) float64 { return each(vip, vip.function[f]) - each(direct, direct.function[f]) }
	functions := slices.SortedFunc(maps.Keys(vip.function), func(a, b string) int { return cmp.Compare(more(b), more(a)) })
	for _, f := range functions[:min(len(functions), 10)] {
		v, d := each(vip, vip.function[f]), each(direct, direct.function[f])
		t.Add("  "+f, fmt.Sprintf("%.1f", v), fmt.Sprintf("%.1f", d), fmt.Sprintf("%+.1f", v-d), "")
	}
	return t
}
