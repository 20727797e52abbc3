//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// Fleet is what many agents cost the API server.
type Fleet struct {
	Agents, Services int
	Start            Phase // from the start of all agents at once until the last switch holds everything
	Idle             Phase // nothing changes
	Changing         Phase // one endpoint changes after the other
	Changes          int   // of Changing
	// Reached is how long after its patch a change was committed at a switch, over all changes and agents; Last, until the
	// last agent had it.
	Reached, Last []time.Duration
	Memory        float64 // resident of an agent, the mean, units of a million bytes
}

// Phase is the load on the API server during some time. Load.Resident is that at its end.
type Phase struct {
	Took                 time.Duration
	Load                 rig.Load
	FromServer, ToServer float64       // bytes on the wire
	AgentCPU             time.Duration // of all agents
}

// fleet is a Fleet while it is measured.
type fleet struct {
	*rig.Fleet
	api *rig.API
	out Fleet
}

func measureFleet(ctx context.Context, p plan, services int, api *rig.API, programs rig.Programs) (out *Fleet, err error) {
	f, err := rig.NewFleet(ctx, p.agents, api, programs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	m := &fleet{Fleet: f, api: api, out: Fleet{Agents: p.agents, Services: services}}
	if err := m.phase(ctx, &m.out.Start, func() error { return m.start(ctx) }); err != nil {
		return nil, err
	}
	say("%d agents serve %d Services %v after their start; API server: %.1f s of CPU, %.1f MB sent", p.agents, services,
		m.out.Start.Took.Round(time.Millisecond), m.out.Start.Load.CPU.Seconds(), m.out.Start.FromServer/1e6)
	time.Sleep(3 * time.Second)
	if err := m.phase(ctx, &m.out.Idle, func() error { time.Sleep(p.fleet / 2); return nil }); err != nil {
		return nil, err
	}
	if err := m.phase(ctx, &m.out.Changing, func() error { return m.change(ctx, p.fleet) }); err != nil {
		return nil, err
	}
	for _, a := range m.Agents {
		r, _, err := rig.Resident(a.PID())
		if err != nil {
			return nil, err
		}
		m.out.Memory += r / float64(len(m.Agents))
	}
	say("%d agents, %d changes: at each after p50 %v, p99 %v; at the last p50 %v; API server %.2f cores", p.agents, m.out.Changes,
		quantile(m.out.Reached, 50), quantile(m.out.Reached, 99), quantile(m.out.Last, 50), m.out.Changing.Load.CPU.Seconds()/m.out.Changing.Took.Seconds())
	return &m.out, nil
}

// phase measures the load on the API server while f runs.
func (m *fleet) phase(ctx context.Context, p *Phase, f func() error) error {
	before, err := m.api.Load(ctx)
	if err != nil {
		return err
	}
	rx, tx, err := m.Wire(ctx)
	if err != nil {
		return err
	}
	cpu := m.cpu()
	begin := time.Now()
	if err := f(); err != nil {
		return err
	}
	p.Took = time.Since(begin)
	p.AgentCPU = m.cpu() - cpu
	rx2, tx2, err := m.Wire(ctx)
	if err != nil {
		return err
	}
	p.FromServer, p.ToServer = rx2-rx, tx2-tx
	after, err := m.api.Load(ctx)
	p.Load = after.Sub(before)
	return err
}

func (m *fleet) cpu() (sum time.Duration) {
	for _, a := range m.Agents {
		t, _ := rig.CPU(a.PID())
		sum += t
	}
	return sum
}

// start starts the agents and waits until every switch holds a flow and a group for each Service.
func (m *fleet) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := m.Start(); err != nil {
		return err
	}
	for i, s := range m.Switches {
		for {
			changed := s.Changed()
			flows, groups := s.Held()
			if flows >= m.out.Services && groups >= m.out.Services {
				break
			}
			if err := m.Agents[i].Ended(); err != nil {
				return err
			}
			select {
			case <-changed:
			case <-time.After(time.Second):
			case <-ctx.Done():
				return fmt.Errorf("agent %d programmed %d flows and %d groups only: %w\n%s", i, flows, groups, ctx.Err(), m.Agents[i].Log())
			}
		}
	}
	return nil
}

// change changes one endpoint after the other until d has passed, each when every agent has the one before.
func (m *fleet) change(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d+30*time.Second)
	defer cancel()
	for begin := time.Now(); time.Since(begin) < d; m.out.Changes++ {
		before := make([]int, len(m.Switches))
		for i, s := range m.Switches {
			before[i], _ = s.Commits()
		}
		service, to := m.api.NextMove()
		patched := time.Now()
		if err := m.api.Move(ctx, service.Name, 0, to); err != nil {
			return err
		}
		var worst time.Duration
		for i, s := range m.Switches {
			for {
				changed := s.Changed()
				n, at := s.Commits()
				if n > before[i] {
					m.out.Reached = append(m.out.Reached, at.Sub(patched))
					worst = max(worst, at.Sub(patched))
					break
				}
				select {
				case <-changed:
				case <-ctx.Done():
					return fmt.Errorf("agent %d does not follow: %w", i, ctx.Err())
				}
			}
		}
		m.out.Last = append(m.out.Last, worst)
		time.Sleep(30 * time.Millisecond)
	}
	return nil
}
