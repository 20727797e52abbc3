//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/rig"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Repair is what clients meet after another program has deleted all nftables tables of the node (nft flush ruleset).
type Repair struct {
	Took  time.Duration // from the start of nft until every Service with pods has answered again; 0: not within Limit
	Limit time.Duration
	// Connections begun from the end of nft until Took, or Limit: all; answered by a host that is no endpoint, or refused; not
	// answered within askTime, or unreachable by a router's word.
	Asked, Wrong, Unanswered int
	Held, Kept               int // connections open before; of these, usable afterwards
}

// outcome returns when all were serving again and how many open connections were kept, for a reader.
func (r *Repair) outcome() (took, kept string) {
	if r.Took == 0 {
		return "not within " + short(r.Limit), "–"
	}
	return "after " + short(r.Took), fmt.Sprintf("%d of %d", r.Kept, r.Held)
}

const (
	repairLimit = 40 * time.Second // kube-proxy syncs every 30 s, if it has something to do
	heldBefore  = 20
	askTime     = 100 * time.Millisecond
)

// tables measures the tables that the proxy has installed: their memory, and what happens when another program deletes them.
func (m *measurement) tables(ctx context.Context, c *Control) (err error) {
	if m.Kind == rig.NKP {
		return nil
	}
	if c.TableMemory, err = m.TableMemory(ctx); err != nil {
		return err
	}
	m.say("tables: %.1f MB of the kernel's memory", c.TableMemory)
	if !m.size.repair || m.Kind == rig.KubeLegacy {
		return nil
	}
	begin := time.Now()
	if err := m.Start(); err != nil {
		return err
	}
	if _, err := m.reachAll(ctx, begin); err != nil {
		return err
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	c.Repair, err = m.repair(ctx)
	return err
}

// repair deletes the tables of a proxy that has settled, and asks its Services meanwhile.
func (m *measurement) repair(ctx context.Context) (r *Repair, err error) {
	r = &Repair{Limit: repairLimit}
	targets := m.everything()
	var held []*testbed.Held
	for i := range heldBefore {
		h, err := m.Client.Hold(ctx, targets[i%len(targets)], testbed.DialOptions{Reset: true})
		if err != nil && m.Kind.OfKubernetes() && ctx.Err() == nil {
			m.say("a Service that had answered does not: %v", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		defer h.Close()
		held = append(held, h)
	}
	r.Held = len(held)
	limited, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	begin := time.Now()
	if err := m.DeleteTables(ctx); err != nil {
		return nil, err
	}
	asking, stop := context.WithCancel(limited)
	defer stop()
	var asked, wrong, unanswered atomic.Int64
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() { // ends with asking
			for asking.Err() == nil {
				try, cancel := context.WithTimeout(asking, askTime)
				a, err := m.Client.AskWith(try, "tcp", targets[rand.IntN(len(targets))], testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
				cancel()
				if asking.Err() != nil {
					return
				}
				asked.Add(1)
				switch {
				case err == nil && rig.IsEndpoint(a.Pod):
				case err == nil, errors.Is(err, testbed.ErrRefused):
					wrong.Add(1)
				default:
					unanswered.Add(1)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	took, err := m.reachAll(limited, begin)
	stop()
	wg.Wait()
	if r.Asked, r.Wrong, r.Unanswered = int(asked.Load()), int(wrong.Load()), int(unanswered.Load()); err == nil {
		r.Took = took
	} else if ctx.Err() != nil || limited.Err() == nil || m.Proxy.Ended() != nil {
		return nil, err
	}
	if r.Took != 0 {
		for _, h := range held {
			err := h.CheckUntil(func() error { // a connection that is lost hears nothing
				_, err := m.Client.Ask(ctx, "tcp", targets[0])
				return err
			})
			if err == nil {
				r.Kept++
			}
		}
	}
	when, kept := r.outcome()
	m.say("after nft flush ruleset: all serving %s; of %d connections meanwhile %d answered wrongly, %d not; open ones kept: %s", when, r.Asked, r.Wrong, r.Unanswered, kept)
	return r, nil
}
