package apiserver

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// How a burst of changes is batched. The first change after a quiet period is passed on at once.
const (
	burstGap  = 5 * time.Millisecond  // this long without a change ends a burst
	burstMost = 50 * time.Millisecond // longest burst
)

// collector receives changes of all kinds, each kind on its own goroutine, and passes them to the sink in batches, on the
// goroutine of publish.
type collector struct {
	health *health
	sink   k8s.Sink
	rung   chan struct{} // holds one token while something is pending

	mu      sync.Mutex   // protects changes
	changes []k8s.Change // not passed on yet
}

func (c *collector) ring() {
	select {
	case c.rung <- struct{}{}:
	default:
	}
}

// add takes changes in the order in which they happened.
func (c *collector) add(changes ...k8s.Change) {
	c.mu.Lock()
	c.changes = append(c.changes, changes...)
	c.mu.Unlock()
	for i := range changes {
		if changes[i].Ref.Kind == k8s.KindNode {
			c.health.sawNode(changes[i].Op == k8s.Upsert)
		}
	}
	c.ring()
}

// publish passes changes and problems on until the context ends. Before complete is closed changes are only collected.
func (c *collector) publish(ctx context.Context, complete <-chan struct{}) {
	var reported k8s.Problems
	var last, first time.Time // when changes were last passed on; when the oldest pending one came, if any
	synced := false
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-complete:
			complete, synced = nil, true
			c.pass()
			c.sink.Synced()
			last = time.Now()
		case <-timer.C:
			c.pass()
			last, first = time.Now(), time.Time{}
		case <-c.rung:
			if p := c.health.problems(); !reflect.DeepEqual(p, reported) {
				reported = p
				c.sink.Problems(p)
			}
			now := time.Now()
			switch {
			case !synced:
			case first.IsZero() && now.Sub(last) >= burstGap:
				if c.pass() {
					last = now
				}
			default:
				if first.IsZero() {
					first = now
				}
				timer.Reset(min(burstGap, max(0, time.Until(first.Add(burstMost)))))
			}
		}
	}
}

// pass passes the pending changes to the sink. It reports whether there were any.
func (c *collector) pass() bool {
	c.mu.Lock()
	changes := c.changes
	c.changes = nil
	c.mu.Unlock()
	if len(changes) == 0 {
		return false
	}
	c.sink.Apply(changes)
	return true
}
