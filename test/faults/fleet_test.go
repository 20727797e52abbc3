//go:build linux

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// fleet is a set of clients: some hold connections, some open new ones all the time.
type fleet struct {
	targets map[*testbed.Host][]target
	hosts   []*testbed.Host
	// outside is the client whose connections are masqueraded.
	outside *testbed.Host

	tally  *tally // of new connections
	broken *tally // of round trips on held ones
	held   atomic.Int64

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// fleet makes clients for Services: pods use ClusterIPs, a client outside NodePorts.
func (c *cluster) fleet(services []*svc) *fleet {
	f := &fleet{targets: map[*testbed.Host][]target{}, outside: c.External}
	for _, p := range c.clients {
		f.hosts = append(f.hosts, p.Host)
		f.targets[p.Host] = targets(services, false)
	}
	f.hosts = append(f.hosts, c.External)
	f.targets[c.External] = targets(services, true)
	return f
}

// outsidePause is between two connections of the client outside. They are masqueraded: an endpoint can be reached by 28,976
// of them from one node address at a time, and for 10 s after their end (pipeline.MasqueradePortMin, and conntrack's time
// for what was reset).
const outsidePause = 2 * time.Millisecond

// run sets the fleet to work: threads clients on each pod that open a connection every pause (0: as fast as they can), one
// outside that takes its time, and one more on each host that holds a connection to each target.
func (f *fleet) run(threads int, pause time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	f.tally, f.broken, f.cancel = &tally{}, &tally{}, cancel
	for _, h := range f.hosts {
		threads, pause := threads, pause
		if f.outside == h {
			threads, pause = 1, max(pause, outsidePause)
		}
		for range threads {
			f.wg.Go(func() { f.must(inside(h, func() error { return f.open(ctx, h, pause) })) })
		}
		f.wg.Go(func() { f.must(inside(h, func() error { return f.hold(ctx, h) })) })
	}
}

// must counts what can only be an error of the test itself.
func (f *fleet) must(err error) {
	if err != nil {
		f.tally.fail("client: "+err.Error(), "fleet", time.Now())
	}
}

// stop waits until every connection that was begun is made or has failed.
func (f *fleet) stop() {
	f.cancel()
	f.wg.Wait()
}

func (f *fleet) open(ctx context.Context, h *testbed.Host, pause time.Duration) error {
	list := f.targets[h]
	for i := rand.IntN(len(list)); ctx.Err() == nil; i++ {
		g := &list[i%len(list)]
		began := time.Now()
		if c, err := dial(g.to, g.control); err != nil {
			f.tally.fail(err.Error(), h.Name+" to "+g.name, began)
		} else {
			c.reset()
			if g.pods[c.who] {
				f.tally.made.Add(1)
			} else {
				f.tally.fail("answered by a pod that is none of its endpoints", h.Name+" to "+g.name+": "+c.who, began)
			}
		}
		if pause > 0 {
			time.Sleep(pause)
		}
	}
	return nil
}

// hold keeps a connection to each target and makes round trips, each at least once in about 2 s. One that broke is recreated.
func (f *fleet) hold(ctx context.Context, h *testbed.Host) error {
	list := f.targets[h]
	conns := make([]*connection, len(list))
	defer func() {
		for _, c := range conns {
			if c != nil {
				began := time.Now() // the last one: nothing broke unseen
				if err := c.check(); err != nil {
					f.broken.fail(err.Error(), h.Name+" held to "+c.who, began)
				}
				c.reset()
			}
		}
	}()
	for ctx.Err() == nil {
		for i := range list {
			if ctx.Err() != nil {
				return nil
			}
			began := time.Now()
			if c := conns[i]; c == nil {
				c, err := dial(list[i].to, list[i].control)
				if err != nil {
					f.tally.fail(err.Error(), h.Name+" to hold "+list[i].name, began)
				} else {
					f.held.Add(1)
					f.tally.made.Add(1)
					conns[i] = c
				}
			} else if err := c.check(); err != nil {
				f.broken.fail(err.Error(), fmt.Sprintf("%s held to %s at %s", h.Name, list[i].name, c.who), began)
				c.reset()
				conns[i] = nil
			} else {
				f.broken.made.Add(1)
			}
			time.Sleep(2 * time.Second / time.Duration(len(list)))
		}
	}
	return nil
}
