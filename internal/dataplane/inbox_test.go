package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// portsOf returns changes that set these Service ports.
func portsOf(names ...k8s.PortName) k8s.Changes {
	c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	for _, n := range names {
		c.Ports[n] = &k8s.ServicePort{Name: n}
	}
	return c
}

// Any number of updates become one, in which the latest counts; the first brings the facts, whatever it says.
func TestInbox(t *testing.T) {
	queued := 0
	in := NewInbox(func(fs ...k8s.Family) {
		if queued++; !slices.Equal(fs, Families) {
			t.Errorf("queued for %v", fs)
		}
	})
	if in.Take() != nil || !in.Idle() {
		t.Error("there is something before the first update")
	}
	a, b := named("a"), named("b")
	node := k8s.Node{Name: "n1", IPs: []netip.Addr{netip.MustParseAddr("172.16.0.2")}}
	in.Put(&k8s.Model{Node: node}, portsOf(a, b))
	gone := portsOf()
	gone.Ports[a] = nil
	in.Put(&k8s.Model{Node: node}, gone)
	if len(in.Signal) != 1 || queued != 2 || in.Idle() || in.WhileIdle(func() { t.Error("called while something waits") }) {
		t.Errorf("%d tokens, %d times queued", len(in.Signal), queued)
	}
	u := in.Take()
	if u == nil || !u.Node || u.Facts.Node.Name != "n1" || len(u.Ports) != 2 || u.Ports[a] != nil || u.Ports[b] == nil || u.Arrived.IsZero() {
		t.Fatalf("%+v", u)
	}
	in.Put(&k8s.Model{Node: node}, k8s.Changes{})
	if queued != 2 || !in.Idle() {
		t.Error("an update without changes is queued")
	}
	done := false
	if !in.WhileIdle(func() { done = true }) || !done {
		t.Error("not called while nothing waits")
	}
	in.Put(&k8s.Model{Node: node}, portsOf(a))
	if u := in.Take(); u == nil || u.Node {
		t.Errorf("the facts are as before: %+v", u)
	}
}

// An Inbox of one family takes what concerns it: health check node ports concern each.
func TestInboxOfOneFamily(t *testing.T) {
	queued := 0
	in := NewInbox(func(...k8s.Family) { queued++ }, k8s.IPv6)
	in.Put(&k8s.Model{}, k8s.Changes{})
	if u := in.Take(); u == nil || !u.Node {
		t.Errorf("the first update of an empty cluster: %+v", u)
	}
	four, six := named("web"), named("web")
	four.Family, six.Family = k8s.IPv4, k8s.IPv6
	in.Put(&k8s.Model{}, portsOf(four))
	if queued != 1 || !in.Idle() {
		t.Error("a change of the other family is queued")
	}
	in.Put(&k8s.Model{}, portsOf(four, six))
	in.Put(&k8s.Model{}, k8s.Changes{HealthChecks: map[k8s.ServiceName]*k8s.HealthCheck{four.ServiceName: nil}})
	if u := in.Take(); u == nil || len(u.Ports) != 1 || u.Ports[six] == nil || len(u.HealthChecks) != 1 || queued != 3 {
		t.Errorf("%+v, queued %d times", u, queued)
	}
}

// Long work that may wait gives way to what comes in, and the token stays for the plane.
func TestUndisturbed(t *testing.T) {
	in := NewInbox(func(...k8s.Family) {})
	ctx, disturbed := in.Undisturbed(t.Context())
	if ctx.Err() != nil || disturbed() || ctx.Err() == nil {
		t.Error("disturbed by nothing, or not over")
	}
	ctx, disturbed = in.Undisturbed(t.Context())
	in.Put(&k8s.Model{}, portsOf(named("a")))
	<-ctx.Done()
	if !disturbed() || len(in.Signal) != 1 {
		t.Errorf("not disturbed, or %d tokens", len(in.Signal))
	}
}

// What arrived by a time waits until it was taken and the plane has settled; what arrives later does not hold that up, and the
// rest of what was taken in part is as old as the whole.
func TestInboxWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := NewInbox(func(...k8s.Family) {})
		expect := func(when string, by time.Time, want bool) {
			t.Helper()
			if in.Waits(by) != want {
				t.Errorf("%s: waits is %v", when, !want)
			}
		}
		now := func() time.Time {
			time.Sleep(time.Second)
			defer time.Sleep(time.Second)
			return time.Now()
		}
		expect("before the first update", now(), true)
		in.Put(&k8s.Model{}, portsOf(named("a")))
		first := now()
		expect("queued", first, true)
		in.Take()
		expect("taken", first, true)
		in.Put(&k8s.Model{}, portsOf(named("b")))
		expect("taken, and another queued", first, true)
		in.Settled()
		expect("settled, and another queued", first, false)
		second := now()
		expect("the other is queued", second, true)
		in.Take()
		in.Settled()
		expect("all settled", now(), false)

		large := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
		for i := range 3 {
			n := named(fmt.Sprint("large", i))
			large.Ports[n] = &k8s.ServicePort{Name: n, Cost: Portion, ServiceCost: 3 * Portion}
		}
		in.Put(&k8s.Model{}, large)
		third := now()
		parts := 0
		for ; in.Take() != nil; parts++ {
			expect(fmt.Sprint("part ", parts), third, true)
			in.Settled()
		}
		if parts < 2 {
			t.Errorf("taken in %d parts", parts)
		}
		expect("all parts", third, false)
	})
}
