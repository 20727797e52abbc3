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
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/testbed"
	"github.com/nkp-proxy/nkp/test/bench/report"
	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/bench/traffic"
)

// legTime is how long one side is at work at a stretch while it is profiled: long beside the start of perf.
const legTime = 5 * time.Second

// profile tells where the time goes for new connections by 8 clients, through the VIP and straight to the pods, by perf: of
// ovs-vswitchd where it forwards, of the whole machine where the kernel does. The switch must have symbols and frame pointers; a
// distribution's has neither (NKP_OVS names another one).
func profile(ctx context.Context, kind rig.Kind, programs rig.Programs, root string, services, pairs int) error {
	if err := errors.Join(testbed.OVS.Available(), testbed.Linux.Available()); err != nil {
		return err
	}
	if _, err := exec.LookPath("perf"); err != nil {
		return fmt.Errorf("%w: apt-get install linux-perf", err)
	}
	vip, direct := newLegs(kind), newLegs(kind)
	measure := func(m *measurement) error { return m.profile(ctx, vip, direct, pairs) }
	var err error
	if kind == rig.NKP {
		err = withNodeAlone(ctx, kind, services, programs, measure)
	} else {
		err = withAPI(ctx, programs, root, func(api *rig.API, programs rig.Programs) error {
			if err := api.Fill(ctx, 0, services); err != nil {
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
	fmt.Println(report.Text(profileTable(kind, services, vip, direct)))
	return nil
}

// profile lets both sides work in turns.
func (m *measurement) profile(ctx context.Context, vip, direct *legs, pairs int) error {
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
			if err := m.leg(ctx, s.legs, s.to); err != nil {
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

func newLegs(kind rig.Kind) *legs {
	if kind == rig.NKP {
		return &legs{samples: samples{of: switchActivities}}
	}
	return &legs{samples: samples{of: machineActivities}}
}

// leg profiles one side for legTime.
func (m *measurement) leg(ctx context.Context, l *legs, to []string) error {
	work := func() error {
		r, err := m.traffic(ctx, traffic.Options{Targets: to, Clients: 8, Duration: legTime, Connect: true})
		l.done += r.Done
		return err
	}
	if m.Kind != rig.NKP {
		return l.perf(ctx, 0, work)
	}
	if _, err := m.Appctl("dpif-netdev/pmd-stats-clear"); err != nil {
		return err
	}
	if err := l.perf(ctx, m.VswitchdPID(), work); err != nil {
		return err
	}
	out, err := m.Appctl("dpif-netdev/pmd-stats-show") // of its main thread, which forwards
	if err != nil {
		return err
	}
	var found, mean float64
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		_, _ = fmt.Sscanf(line, "megaflow hits: %f", &found)
		_, _ = fmt.Sscanf(line, "avg. subtable lookups per megaflow hit: %f", &mean)
	}
	if found == 0 {
		return fmt.Errorf("ovs-vswitchd tells of no cached flow that was found: %s", out)
	}
	l.searches += found
	l.masked += found * mean
	return nil
}

// profileTable gives microseconds for each connection, and the functions that differ most.
func profileTable(kind rig.Kind, services int, vip, direct *legs) report.Table {
	whose := "the machine's time"
	if kind == rig.NKP {
		whose = "ovs-vswitchd's time"
	}
	t := report.Table{
		Title:  fmt.Sprintf("%s: %s for a new connection at %d Services: µs, %d connections to the VIP, %d direct", kind, whose, services, vip.done, direct.done),
		Header: []string{"", "VIP", "direct", "more", ""},
	}
	each := func(l *legs, what float64) float64 { return what / float64(max(1, l.done)) }
	var vipAll, directAll float64
	for _, ns := range vip.activity {
		vipAll += each(vip, ns)
	}
	for _, ns := range direct.activity {
		directAll += each(direct, ns)
	}
	row := func(name string, v, d float64) {
		t.Add(name, fmt.Sprintf("%.1f", v/1000), fmt.Sprintf("%.1f", d/1000), fmt.Sprintf("%+.1f", (v-d)/1000), fmt.Sprintf("%+.1f %%", 100*(v-d)/directAll))
	}
	for _, a := range vip.of {
		if a.name != "" {
			row(a.name, each(vip, vip.activity[a.name]), each(direct, direct.activity[a.name]))
		}
	}
	row("together", vipAll, directAll)
	more := func(f string) float64 { return each(vip, vip.function[f]) - each(direct, direct.function[f]) }
	functions := slices.SortedFunc(maps.Keys(vip.function), func(a, b string) int { return cmp.Compare(more(b), more(a)) })
	for _, f := range functions[:min(len(functions), 10)] {
		row("  "+f, each(vip, vip.function[f]), each(direct, direct.function[f]))
	}
	if kind == rig.NKP {
		t.Add("searches of cached flows", fmt.Sprintf("%.2f", each(vip, vip.searches)), fmt.Sprintf("%.2f", each(direct, direct.searches)), "", "")
		t.Add("masks searched each time", fmt.Sprintf("%.2f", vip.masked/max(1, vip.searches)), fmt.Sprintf("%.2f", direct.masked/max(1, direct.searches)), "", "")
	}
	return t
}
