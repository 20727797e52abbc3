//go:build linux

package faults

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// probeEvery is the resolution of an outage, noise how far two equal ones may be apart: starting ovs-vswitchd takes a quarter
// of a second of work.
const (
	probeEvery = 5 * time.Millisecond
	noise      = 100 * time.Millisecond
)

// A restart of ovs-vswitchd is an outage: nothing passes while it is down. With nkp it is no longer than with Open vSwitch's own
// way of keeping flows over a restart, by the same flows and groups: they are saved, ovs-vswitchd starts with
// flow-restore-wait, ovs-ofctl restores them, and the setting is taken away.
func TestSwitchRestart(t *testing.T) {
	form := formFromEnv(t)
	c := newCluster(t)
	c.straight = true
	c.makeServices()
	must(t, c.put(500))
	must(t, c.start())
	must(t, c.settle())
	saved, err := c.save()
	must(t, err)
	ways := []struct {
		name   string
		agent  bool
		start  func() error
		outage []time.Duration
	}{
		{"by hand: ovs-ofctl, flow-restore-wait", false, func() error {
			return c.startRestoring(func() error { return c.restore(saved) })
		}, nil},
		{"nkp alone", true, c.StartVswitchd, nil},
		{"nkp, flow-restore-wait taken away when nkp diff is 0", true, func() error { return c.startRestoring(c.settleFlows) }, nil},
	}
	if !form.long {
		ways = ways[:2]
	}
	for range form.restartTimes {
		for i := range ways {
			w := &ways[i]
			if _, err := c.running(); err != nil && w.agent {
				must(t, c.start())
			} else if !w.agent {
				must(t, c.stop(syscall.SIGTERM))
			}
			if w.agent {
				must(t, c.settle())
			}
			p := c.probe()
			time.Sleep(300 * time.Millisecond)
			c.KillVswitchd()
			time.Sleep(500 * time.Millisecond) // others may take longer; nkp must not be slower to come back then
			must(t, w.start())
			d, err := p.end(20 * time.Second)
			must(t, err)
			w.outage = append(w.outage, d)
			must(t, c.untilEqual())
		}
	}
	for i := range ways {
		w := &ways[i]
		t.Logf("%-55s %v, median %v, best %v", w.name, w.outage, median(w.outage), slices.Min(w.outage))
	}
	// The best of each counts: whatever else runs on the machine only adds to the others.
	hand, nkp := slices.Min(ways[0].outage), slices.Min(ways[1].outage)
	if nkp > hand+noise {
		t.Errorf("new connections fail for %v with nkp, for %v with flows restored by hand", nkp, hand)
	}
}

// untilEqual waits until the switch holds what it should, whoever put it there.
func (c *cluster) untilEqual() error {
	deadline := time.Now().Add(settleLimit)
	for {
		text, status := c.diff()
		if status == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("diff ends with %d after %v:\n%.2000s", status, settleLimit, text)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func median(ds []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(ds))
	return s[len(s)/2]
}

// prober opens a connection to one Service every probeEvery and notes when those began that were made.
type prober struct {
	c    *cluster
	quit chan struct{}
	wg   sync.WaitGroup

	mu   sync.Mutex // protects good
	good []time.Time
}

// probe begins to probe. Each connection has a quarter of a second: a lost SYN is not repeated, the next connection is.
func (c *cluster) probe() *prober {
	p := &prober{c: c, quit: make(chan struct{})}
	to := netip.AddrPortFrom(c.services[0].vip, 80)
	jobs := make(chan time.Time, 100)
	for range 60 {
		p.wg.Go(func() {
			inside(c.clients[0].Host, func() error {
				for began := range jobs {
					if conn, err := dial(to, 250*time.Millisecond); err == nil {
						conn.reset()
						p.mu.Lock()
						p.good = append(p.good, began)
						p.mu.Unlock()
					}
				}
				return nil
			})
		})
	}
	p.wg.Go(func() {
		defer close(jobs)
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for {
			select {
			case <-p.quit:
				return
			case now := <-tick.C:
				jobs <- now
			}
		}
	})
	return p
}

// end waits until connections are made again, and half a second more, and gives the longest time without one.
func (p *prober) end(limit time.Duration) (time.Duration, error) {
	begin := time.Now()
	for recovered := false; !recovered; {
		if time.Since(begin) > limit {
			close(p.quit)
			p.wg.Wait()
			return 0, fmt.Errorf("no connection for %v", limit)
		}
		time.Sleep(20 * time.Millisecond)
		p.mu.Lock()
		n := 0
		for _, g := range p.good {
			if g.After(begin) {
				n++
			}
		}
		recovered = n > 20
		p.mu.Unlock()
	}
	time.Sleep(500 * time.Millisecond)
	close(p.quit)
	p.wg.Wait()
	slices.SortFunc(p.good, time.Time.Compare)
	longest := time.Duration(0)
	for i := 1; i < len(p.good); i++ {
		longest = max(longest, p.good[i].Sub(p.good[i-1]))
	}
	return longest.Round(time.Millisecond), nil
}
