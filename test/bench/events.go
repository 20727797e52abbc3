//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/bench/traffic"
)

// Event is what nkp takes for something that happens seldom, beside the least that it can take. In each pair nkp's value is VIP,
// and that of the reference Direct.
type Event struct {
	What         string
	MoreIsBetter bool
	Rounds       Pairs
}

// restores are how the tables of a plane are read, and written again with nothing else: by shell commands, in the node's folder.
var restores = map[rig.Kind]struct{ what, save, restore string }{
	rig.IPTables: {
		"iptables-restore", "iptables-save >four && ip6tables-save >six",
		"iptables-restore <four && ip6tables-restore <six",
	},
	rig.NFTables: {"nft -f", "nft list ruleset >all", "nft -f all"},
}

// measureEvents measures, in rounds: how long nkp takes to fill empty tables, beside a restore of the same tables; how long after
// a freeze of the switch a change is in force, beside the switch's answer to an echo; and how many new connections there are while
// nkp is replaced, beside as much time without. It fails if a replacement costs a connection.
func measureEvents(ctx context.Context, rounds, services int, programs rig.Programs) (list []Event, err error) {
	for _, kind := range []rig.Kind{rig.NKP, rig.IPTables, rig.NFTables} {
		err := withNodeAlone(ctx, kind, services, programs, func(m *measurement) error {
			first := Event{What: fmt.Sprintf("%s: programming, of %s", kind, restores[kind].what)}
			measure := m.restored
			if kind == rig.NKP {
				first.What = "nkp: a change after the switch froze, of the switch's own answer"
				measure = m.frozen
			}
			replaced := Event{What: fmt.Sprintf("%s: new connections while it is replaced, of those without", kind), MoreIsBetter: true}

			if _, err := m.inStep(); err != nil {
				return err
			}
			for i := range rounds {
				for _, e := range []struct {
					to      *Event
					measure func(context.Context, int) (Pair, error)
				}{{&first, measure}, {&replaced, m.replaced}} {
					p, err := e.measure(ctx, i)
					if err != nil {
						return fmt.Errorf("%s: %w", e.to.What, err)
					}
					e.to.Rounds = append(e.to.Rounds, p)
				}
			}
			list = append(list, first, replaced)
			m.say("%s %.2f; %s %.3f", first.What, first.Rounds.Ratio(), replaced.What, replaced.Rounds.Ratio())
			return nil
		})
		if err != nil {
			return list, err
		}
	}
	return list, nil
}

// restored has the running nkp's tables restored without it, and then made anew by nkp.
func (m *measurement) restored(ctx context.Context, _ int) (p Pair, err error) {
	if err := m.timedShell(ctx, restores[m.Kind].save, nil); err != nil {
		return p, err
	}
	m.Proxy.Stop()
	if err := m.DeleteTables(ctx); err != nil {
		return p, err
	}
	if err := m.timedShell(ctx, restores[m.Kind].restore, &p.Direct); err != nil {
		return p, err
	}

	if err := m.DeleteTables(ctx); err != nil {
		return p, err
	}
	if err := m.Start(); err != nil {
		return p, err
	}
	if _, err := m.inStep(); err != nil {
		return p, err
	}
	text, err := m.RunNKP("status", "-o", "json", "--socket", m.Socket())
	if err != nil {
		return p, err
	}
	var status struct {
		Start struct{ ModelMilliseconds, InStepMilliseconds float64 }
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return p, err
	}
	p.VIP = status.Start.InStepMilliseconds - status.Start.ModelMilliseconds
	if p.VIP <= 0 {
		return p, fmt.Errorf("nkp does not say how long it programmed: %+v", status.Start)
	}
	return p, nil
}

// timedShell runs a command on the node, in the bed's folder. took, if not nil, gets the milliseconds.
func (m *measurement) timedShell(ctx context.Context, command string, took *float64) error {
	begin := time.Now()
	if out, err := m.Node.Node.Exec(ctx, "sh", "-c", "cd "+m.RunDir+" && "+command); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	if took != nil {
		*took = time.Since(begin).Seconds() * 1000
	}
	return nil
}

// freeze is long enough for nkp to have read and sent a change, and too short for either side to give up the connection.
const freeze = time.Second

// frozen changes an endpoint while the switch does not run, and asks the switch for an echo.
func (m *measurement) frozen(ctx context.Context, round int) (p Pair, err error) {
	pod := rig.RemotePod(round % rig.Endpoints)
	if round == 0 { // the Service is new
		frontend, err := m.PutMover(rig.RemotePod(rig.Endpoints - 1))
		if err != nil {
			return p, err
		}
		if _, err := m.Reach(ctx, frontend, "", time.Now()); err != nil {
			return p, err
		}
	}

	if err := m.PauseVswitchd(true); err != nil {
		return p, err
	}
	frontend, putErr := m.PutMover(pod)
	var echo errgroup.Group
	var answered time.Time
	echo.Go(func() error { // ends with the answer, or with ovs-ofctl's patience
		_, err := m.Ofctl("--timeout=30", "probe", m.Bridge)
		answered = time.Now()
		return err
	})
	time.Sleep(freeze)
	begin := time.Now()
	if err := errors.Join(putErr, m.PauseVswitchd(false)); err != nil {
		return p, err
	}

	took, err := m.Reach(ctx, frontend, pod, begin)
	if err := errors.Join(err, echo.Wait()); err != nil {
		return p, err
	}
	return Pair{took.Seconds() * 1000, answered.Sub(begin).Seconds() * 1000}, nil
}

// replaceFor is how long connections are counted: several times as long as a start takes.
const replaceFor = 3 * time.Second

// replaced counts new connections while nkp is ended and started again, and while it is not. Each comes first in every second round.
func (m *measurement) replaced(ctx context.Context, round int) (p Pair, err error) {
	count := func(replace bool) (rate float64, failed int, err error) {
		var g errgroup.Group
		if replace {
			g.Go(func() error {
				time.Sleep(replaceFor / 10)
				m.Proxy.Stop()
				return m.Start()
			})
		}
		r, err := m.traffic(ctx, traffic.Options{Targets: []string{rig.Data().Frontend()}, Clients: 8, Duration: replaceFor, Connect: true})
		if e := g.Wait(); err == nil {
			err = e
		}
		if err == nil {
			_, err = m.inStep()
		}
		return r.Rate(), r.Failed, err
	}

	failed := [2]int{}
	order := []bool{true, false}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	for _, replace := range order {
		to, i := &p.Direct, 0
		if replace {
			to, i = &p.VIP, 1
		}
		if *to, failed[i], err = count(replace); err != nil {
			return p, err
		}
	}
	if failed[1] > 0 {
		err = fmt.Errorf("%d connections failed while nkp was replaced, and %d while it was not", failed[1], failed[0])
	}
	return p, err
}
