package k8s

import (
	"context"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
)

// How changes that come in a burst are put together. The first one after quiet goes on at once.
const (
	burstGap  = 5 * time.Millisecond  // without another change ends a burst
	burstMost = 50 * time.Millisecond // after its first change, whatever else happens
)

// collector takes events of all informers (it is their ResourceEventHandler, on a goroutine of each) and passes them to
// the sink in batches, on the goroutine of publish.
type collector struct {
	health *health
	sink   Sink
	rung   chan struct{} // holds one token while there is news

	mu      sync.Mutex // protects changes
	changes []Change   // not passed on yet
}

func (c *collector) ring() {
	select {
	case c.rung <- struct{}{}:
	default:
	}
}

// OnAdd is part of cache.ResourceEventHandler.
func (c *collector) OnAdd(o any, _ bool) {
	ref, ok := refOf(o)
	if !ok {
		return
	}
	c.add(Change{Op: Upsert, Ref: ref, Object: o.(Object)})
	if ref.Kind == KindNode {
		c.health.sawNode(true)
	}
}

// OnUpdate is part of cache.ResourceEventHandler. What changed only where nobody looks is no change.
func (c *collector) OnUpdate(before, after any) {
	if ref, ok := refOf(after); ok && !sameButVersion(before, after) {
		c.add(Change{Op: Upsert, Ref: ref, Object: after.(Object)})
	}
}

// OnDelete is part of cache.ResourceEventHandler. An object that vanished while nobody watched comes as a tombstone.
func (c *collector) OnDelete(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	ref, ok := refOf(o)
	if !ok {
		return
	}
	c.add(Change{Op: Delete, Ref: ref})
	if ref.Kind == KindNode {
		c.health.sawNode(false)
	}
}

func (c *collector) add(change Change) {
	c.mu.Lock()
	c.changes = append(c.changes, change)
	c.mu.Unlock()
	c.ring()
}

func refOf(o any) (Ref, bool) {
	object, ok := o.(Object)
	if !ok {
		return Ref{}, false
	}
	return RefOf(object)
}

// sameButVersion compares two trimmed objects of a kind.
func sameButVersion(a, b any) bool {
	switch a := a.(type) {
	case *v1.Service:
		c := *a
		c.ResourceVersion = b.(*v1.Service).ResourceVersion
		return reflect.DeepEqual(&c, b)
	case *discoveryv1.EndpointSlice:
		c := *a
		c.ResourceVersion = b.(*discoveryv1.EndpointSlice).ResourceVersion
		return reflect.DeepEqual(&c, b)
	case *v1.Node:
		c := *a
		c.ResourceVersion = b.(*v1.Node).ResourceVersion
		return reflect.DeepEqual(&c, b)
	case *networkingv1.ServiceCIDR:
		c := *a
		c.ResourceVersion = b.(*networkingv1.ServiceCIDR).ResourceVersion
		return reflect.DeepEqual(&c, b)
	}
	return false
}

// publish passes changes and problems on until the context ends. Before complete is closed changes are only collected.
func (c *collector) publish(ctx context.Context, complete <-chan struct{}) {
	var reported Problems
	var last, first time.Time // when changes were passed on last; when the first that waits came, if any
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

// pass gives the sink what has come in; false: nothing.
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
