//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Control is what one proxy costs at one number of Services, and how fast it follows.
type Control struct {
	Kind      rig.Kind
	Services  int
	Endpoints int // of each Service

	Starts []time.Duration // each from the start of the process until every Service with pods has answered
	// GaveUp is after how long a start was given up, 0 if none was. Served is the share of the Services with pods that answered then.
	// Nothing more is measured but PeakMemory.
	GaveUp time.Duration
	Served float64
	Change []time.Duration // each from the patch of one endpoint until a new connection reached the new one; sorted

	// BurstChange is Change while 100 changes come each second; BurstRate is how many came. CPU is in cores: of the proxy
	// with the programs it runs, and of ovs-vswitchd.
	BurstChange               []time.Duration
	BurstRate                 float64
	BurstCPU, BurstSwitchCPU  float64
	IdleCPU                   float64 // cores
	SettledMemory, LastMemory float64 // resident, units of a million bytes
	PeakMemory                float64 // largest resident, from the last start until SettledMemory
	// AllocatedPerChange is how many bytes nkp allocates at least for one endpoint's change; 0: not known.
	AllocatedPerChange float64
	// TableMemory is the kernel's, of the tables, in units of a million bytes; 0 on Open vSwitch, whose daemon has the flows here.
	TableMemory float64
	Repair      *Repair // nil: not tried
}

// Start is the median of the starts.
func (c Control) Start() time.Duration { return quantile(c.Starts, 50) }

// quantile returns the value below which that many percent are. It sorts the list; of an empty one it returns 0.
func quantile(list []time.Duration, percent int) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[(len(list)-1)*percent/100]
}

// starts starts the proxy and waits until it serves, as often as the plan says; nkp's switch is emptied in between. The
// last one keeps running. At the largest number of Services ovs-ofctl programs the same objects in turns with nkp.
func (m *measurement) starts(ctx context.Context, c *Control, r *Results) error {
	n := 1
	if m.Kind == rig.NKP && m.size.control {
		n = m.plan.starts
	}
	var floor *floor
	if m.Kind == rig.NKP && m.plan.last(m.size) {
		var err error
		if floor, err = m.newFloor(); err != nil {
			return err
		}
		r.Floor = &floor.Floor
	}
	for i := range n {
		begin := time.Now()
		if err := m.Start(); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, m.patience())
		took, err := m.reachAll(limited, begin)
		late := limited.Err() != nil && ctx.Err() == nil
		cancel()
		if late {
			return m.giveUp(ctx, c)
		}
		if err != nil {
			return err
		}
		c.Starts = append(c.Starts, took)
		m.say("all serving %v after the start", took.Round(time.Millisecond))
		if floor != nil {
			if err := floor.round(); err != nil {
				return err
			}
			m.say("programming: nkp %.0f ms, ovs-ofctl --bundle %.0f ms", last(floor.NKP), last(floor.Ofctl))
		}
		if i == n-1 {
			break
		}
		m.Proxy.Stop()
		if _, err := m.RunNKP("cleanup", "--ovsdb", m.DB(), "--bridge", m.Bridge, "--socket", m.Socket()); err != nil {
			return err
		}
	}
	return nil
}

// patience returns how long the proxy may take from its start until it serves everything: at the sizes of -huge kube-proxy is then
// recorded as far as it got.
func (m *measurement) patience() time.Duration {
	if m.size.huge && m.Kind.OfKubernetes() {
		return 2 * time.Minute
	}
	return time.Hour
}

// giveUp records how far a proxy got that does not serve everything in time.
func (m *measurement) giveUp(ctx context.Context, c *Control) (err error) {
	list := m.everything()
	var served atomic.Int64
	var g errgroup.Group
	g.SetLimit(askers)
	for _, s := range list {
		g.Go(func() error {
			try, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			if _, err := m.Client.AskWith(try, "tcp", s, testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}}); err == nil {
				served.Add(1)
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil { // interrupted: the answers say nothing
		return err
	}
	c.GaveUp, c.Served = m.patience(), float64(served.Load())/float64(len(list))
	_, c.PeakMemory, err = rig.Resident(m.Proxy.PID())
	m.say("given up %v after the start: %.0f %% of the Services with pods answer; %.1f MB at most", c.GaveUp, 100*c.Served, c.PeakMemory)
	return err
}

func last[T any](list []T) T { return list[len(list)-1] }

// askers is how many Services are asked side by side. One alone would wait for up to a twentieth of a second more, since the
// first answer is found by the next attempt, and would then ask a hundred others one after the other.
const askers = 8

// reachAll asks every Service with pods until it answers, and returns how long that took since begin.
func (m *measurement) reachAll(ctx context.Context, begin time.Time) (time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askers)
	for _, s := range m.everything() {
		g.Go(func() error {
			_, err := m.Reach(ctx, s, "", begin)
			return err
		})
	}
	err := g.Wait()
	return time.Since(begin), err
}

// everything is all frontends whose endpoints are pods with a name.
func (m *measurement) everything() []string {
	list := rig.LiveFrontends(m.services)
	for k := range rig.Movers {
		list = append(list, rig.Mover(k).Frontend())
	}
	return list
}

func (m *measurement) control(ctx context.Context, c *Control) (err error) {
	idle, burst := m.plan.shortIdle, m.plan.shortBurst
	if m.plan.last(m.size) {
		if idle, burst = m.plan.idle, m.plan.burst; m.Kind != rig.NKP {
			burst = m.plan.peerBurst
		}
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	if c.SettledMemory, c.PeakMemory, err = rig.Resident(m.Proxy.PID()); err != nil {
		return err
	}
	if c.IdleCPU, err = m.cpuDuring(func() error { time.Sleep(idle); return nil }); err != nil {
		return err
	}
	m.say("at rest %.1f MB, at most %.1f MB before, %.2f %% of a core", c.SettledMemory, c.PeakMemory, 100*c.IdleCPU)
	if err := m.changes(ctx, c); err != nil {
		return err
	}
	m.say("one endpoint's change: p50 %v, p99 %v, of %d; allocated %s", quantile(c.Change, 50), quantile(c.Change, 99), len(c.Change), allocated(*c))
	if err := m.burst(ctx, c, burst); err != nil {
		return err
	}
	m.say("at %.0f changes/s: p50 %v, p99 %v, %.2f cores, switch %.2f", c.BurstRate, quantile(c.BurstChange, 50), quantile(c.BurstChange, 99), c.BurstCPU, c.BurstSwitchCPU)
	c.LastMemory, _, err = rig.Resident(m.Proxy.PID())
	return err
}

// settle waits until the proxy has digested its start: it uses less than 5 % of a core for two seconds.
func (m *measurement) settle(ctx context.Context) error {
	calm := 0
	for end := time.Now().Add(40 * time.Second); calm < 4 && time.Now().Before(end) && ctx.Err() == nil; {
		cores, err := m.cpuDuring(func() error { time.Sleep(500 * time.Millisecond); return nil })
		if err != nil {
			return err
		}
		if calm++; cores > 0.05 {
			calm = 0
		}
	}
	if !m.Kind.OfKubernetes() && (m.size.huge || m.plan.last(m.size) && m.plan.full) {
		time.Sleep(6 * time.Second) // nkp returns memory to the system some seconds after its start
	}
	return ctx.Err()
}

// cpuDuring returns the CPU time that the proxy used while f ran, in cores.
func (m *measurement) cpuDuring(f func() error) (cores float64, err error) {
	return cpuOf(m.Proxy.PID(), f)
}

func cpuOf(pid int, f func() error) (cores float64, err error) {
	begin := time.Now()
	before, err := rig.CPU(pid)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := rig.CPU(pid)
	return (after - before).Seconds() / time.Since(begin).Seconds(), err
}

// move changes the endpoint of the next Mover, and returns how long it took until a new connection reached it.
func (m *measurement) move(ctx context.Context) (time.Duration, error) {
	s, to := m.api.NextMove()
	begin := time.Now()
	if err := m.api.Move(ctx, s.Name, 0, to); err != nil {
		return 0, err
	}
	return m.Reach(ctx, s.Frontend(), to, begin)
}

// changes changes one endpoint after the other.
func (m *measurement) changes(ctx context.Context, c *Control) error {
	for range 3 { // the first connections to each
		if _, err := m.move(ctx); err != nil {
			return err
		}
	}
	// Changes one by one, not a burst: kube-proxy lets a second pass between two syncs by default, which is not what is
	// measured here.
	pause := 20 * time.Millisecond
	if m.Kind.OfKubernetes() {
		pause = 1100 * time.Millisecond
	}
	time.Sleep(pause)
	budget := m.plan.shortBudget
	if m.plan.last(m.size) {
		budget = m.plan.changeBudget
	}
	memory, err := m.newAllocations(ctx)
	if err != nil {
		return err
	}
	for begin := time.Now(); len(c.Change) < m.plan.changes && time.Since(begin) < budget; {
		took, err := m.move(ctx)
		if err != nil {
			return err
		}
		c.Change = append(c.Change, took)
		if err := memory.changed(ctx); err != nil {
			return err
		}
		time.Sleep(max(pause, took/4))
	}
	c.AllocatedPerChange = memory.perChange()
	return nil
}

const burstRate = 100 // changes each second

// burst changes endpoints of Services without pods at burstRate, and meanwhile one of the Movers' again and again.
func (m *measurement) burst(ctx context.Context, c *Control, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d+2*time.Minute)
	defer cancel()
	churn, stop := context.WithCancel(ctx)
	defer stop()
	var made atomic.Int64
	var wg sync.WaitGroup
	const workers = 4
	failed := make(chan error, workers)
	for w := range workers {
		wg.Go(func() { // ends with churn
			tick := time.NewTicker(workers * time.Second / burstRate)
			defer tick.Stop()
			for {
				select {
				case <-churn.Done():
					return
				case <-tick.C:
				}
				if err := m.churn(ctx, w); err != nil {
					failed <- err
					return
				}
				made.Add(1)
			}
		})
	}
	begin := time.Now()
	before := m.switchCPU()
	var err error
	c.BurstCPU, err = m.cpuDuring(func() error {
		for time.Since(begin) < d {
			took, err := m.move(ctx)
			if err != nil {
				return err
			}
			c.BurstChange = append(c.BurstChange, took)
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	})
	took := time.Since(begin).Seconds()
	c.BurstSwitchCPU = (m.switchCPU() - before).Seconds() / took
	stop()
	wg.Wait()
	c.BurstRate = float64(made.Load()) / took
	select {
	case e := <-failed:
		return fmt.Errorf("change under load: %w", e)
	default:
		return err
	}
}

// churn changes one endpoint of a Service without clients, to an unused address.
func (m *measurement) churn(ctx context.Context, salt int) error {
	i := rand.IntN(m.services)
	for rig.Live(i) {
		i = rand.IntN(m.services)
	}
	to := fmt.Sprintf("10.%d.%d.%d", 200+salt, rand.IntN(250), 1+rand.IntN(250))
	return m.api.Move(ctx, rig.Numbered(i, 0).Name, rand.IntN(m.size.each()), to)
}
