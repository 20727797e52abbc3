package windows

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Every DLL call counts: kube-proxy 1.36.3 makes 15,456 calls for a fresh start of 200 Services with 5 endpoints each on other
// nodes, 4,256 for one endpoint change, and about 7,000 in an idle minute.
func TestCallBudgets(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.many(200, 5)
	calls := b.good()
	t.Logf("fresh start: %d calls", len(calls))
	if len(calls) > 6622 {
		t.Errorf("a fresh start takes %d calls, want at most 6622", len(calls))
	}
	if b.count() != 200 || remotes(b) != 1200 {
		t.Fatalf("%d load balancers, %d remote endpoints", b.count(), remotes(b))
	}
	b.simple("web-007", "10.99.0.8", "100.244.1.36", "100.244.1.37", "100.244.1.38", "100.244.1.39", "100.244.2.251")
	calls = b.good()
	t.Logf("one endpoint change: %d calls", len(calls))
	if len(calls) > 11 || writes(calls) != 3 { // 1 to look, 5 for the new endpoint, 4 for the load balancer, 1 for the old endpoint
		t.Errorf("one endpoint change takes %d calls, %d of them writes; want at most 11, 3 writes", len(calls), writes(calls))
	}
	b.tracker.DeleteService("default", "web-008")
	if n := len(b.good()); n > 8 {
		t.Errorf("one Service less takes %d calls, want at most 8", n)
	}
	least, most := 1000, 0
	for range 11 { // every fifth minute also reads the States
		minute := 0
		for range 2 {
			b.clock = b.clock.Add(defaultAudit)
			minute += len(b.good())
		}
		least, most = min(least, minute), max(most, minute)
	}
	t.Logf("an idle minute: %d to %d calls", least, most)
	if most > 12 || least == most {
		t.Errorf("an idle minute takes %d to %d calls, want at most 12, and sometimes one more for the States", least, most)
	}
	if n := b.hns.OpenHandles(); n != 0 {
		t.Errorf("%d handles stay open", n)
	}
}

// A change looks at the endpoints only. What else has happened in HNS meanwhile is found nevertheless: at once if the change depends on
// it, else within AuditPeriod, also while changes keep coming.
func TestChangesBetweenEnumerations(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.many(5, 2)
	b.good()
	enumerations := func(calls []hnsfake.Call) int { return hnsfake.Count(calls, "HcnEnumerateLoadBalancers") }

	// A node has joined, and its first pod serves. Then the pod serves another Service too, and the endpoints are enough.
	b.hns.SetRoutes(b.network, map[string]string{"100.244.1.0/24": otherNode, "100.244.2.0/24": "10.20.30.13", "100.244.9.0/24": "10.20.30.19"})
	b.simple("web-000", "10.99.0.1", "100.244.1.1", "100.244.9.1")
	if n := enumerations(b.good()); n != 1 || !strings.Contains(b.hns.Dump(), "endpoint 100.244.9.1 mac=02-11-64-f4-09-01 node=10.20.30.19\n") {
		t.Errorf("a new node's endpoint: %d enumerations; HNS has\n%s", n, b.hns.Dump())
	}
	b.simple("web-001", "10.99.0.2", "100.244.1.3", "100.244.9.1")
	if n := enumerations(b.good()); n != 0 {
		t.Errorf("another change: %d enumerations", n)
	}

	// What could not be enumerated is enumerated by the next change.
	b.hns.Inject(hnsfake.Fault{Func: "HcnEnumerateLoadBalancers", Times: 1, Code: hns.CodeFail, Text: "busy"})
	b.sync()
	b.simple("web-001", "10.99.0.2", "100.244.9.1")
	if n := enumerations(b.good()); n != 1 {
		t.Errorf("a change after a failure: %d enumerations", n)
	}

	// A pod's endpoint comes and goes with the change, and another comes when one goes.
	b.pod("100.244.206.70")
	b.simple("web-002", "10.99.0.3", "100.244.206.70@"+nodeName)
	b.good()
	b.mustHave("10.99.0.3", 80, "100.244.206.70")
	for _, e := range b.hns.Endpoints() {
		if e.Name == "pod-100.244.206.70" {
			b.hns.DropEndpoint(e.ID)
		}
	}
	b.pod("100.244.206.71")
	b.simple("web-002", "10.99.0.3", "100.244.206.70@"+nodeName, "100.244.206.71@"+nodeName)
	b.good()
	b.mustHave("10.99.0.3", 80, "100.244.206.71")
	b.simple("web-002", "10.99.0.3", "100.244.206.71@"+nodeName)
	b.good()

	// A lost load balancer, while its Service changes: HNS refuses the modification, and the retry finds the reason.
	b.hns.DropLoadBalancer(b.loadBalancer("10.99.0.4", 80).ID)
	b.simple("web-003", "10.99.0.4", "100.244.1.1")
	b.flush()
	next := b.round()
	if d := next.Sub(b.clock); d > 2*time.Second {
		t.Errorf("the next try is in %v", d)
	}
	b.clock = next
	b.good()
	b.mustHave("10.99.0.4", 80, "100.244.1.1")

	// A lost load balancer, while other Services change.
	b.clock = b.clock.Add(defaultAudit)
	b.good()
	lost := b.clock
	b.hns.DropLoadBalancer(b.loadBalancer("10.99.0.5", 80).ID)
	for i := 0; b.loadBalancer("10.99.0.5", 80) == nil; i++ {
		b.simple("web-000", "10.99.0.1", fmt.Sprintf("100.244.1.%d", 100+i))
		b.flush()
		next := b.round()
		if next.After(lost.Add(defaultAudit)) && b.clock.Before(lost.Add(defaultAudit)) || i > 10 {
			t.Fatalf("after %v, and %d changes: the next sync is in %v", b.clock.Sub(lost), i, next.Sub(b.clock))
		}
		b.clock = b.clock.Add(10 * time.Second)
	}
}

// What Run does by itself: it syncs, follows changes, audits, and stops when it is told to.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hns.NetworkOverlay, newest, ownClock)
		b.many(20, 2)
		b.flush()
		stop := b.run()
		have := func(when string, want int) {
			t.Helper()
			if n := b.count(); n != want {
				t.Errorf("%s: %d load balancers, want %d", when, n, want)
			}
		}
		settle()
		have("at the start", 20)

		b.hns.Calls()
		time.Sleep(3 * defaultAudit)
		synctest.Wait()
		calls := b.hns.Calls()
		t.Logf("three audit periods: %d calls", len(calls))
		if n := len(calls); n == 0 || n > 20 || writes(calls) > 0 {
			t.Errorf("three audit periods take %d calls, %d of them writes", n, writes(calls))
		}

		b.hns.DropLoadBalancer(b.loadBalancer("10.99.0.3", 80).ID)
		settle()
		have("lost, before the audit", 19)
		time.Sleep(defaultAudit)
		settle()
		have("lost, after the audit", 20)

		b.simple("late", "10.99.3.3", "100.244.1.1")
		b.flush()
		settle()
		have("a change", 21)

		b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 1, Code: hns.CodeFail, Text: "busy"})
		b.simple("later", "10.99.3.4", "100.244.1.1")
		b.flush()
		settle()
		time.Sleep(2 * time.Second) // a failed step is tried again
		settle()
		have("a change that fails at first", 22)

		stop()
		if s := b.plane.Detail(); s.Busy || s.Syncs < 4 || s.Counts.Created < 22 || s.Synced.IsZero() {
			t.Errorf("status %+v", s)
		}
	})
}

// The hourly read of every object takes long; changes do not wait for it, and it ends although they keep coming.
func TestChangesDuringFullRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 3 * defaultAudit
		b := newBed(t, hns.NetworkOverlay, newest, ownClock, func(o *Options) { o.FullAuditPeriod = period })
		b.many(40, 2)
		b.flush()
		stop := b.run()
		settle()
		lost := b.loadBalancer("10.99.0.37", 80).ID
		b.hns.ChangeLoadBalancer(lost, func(o hnsfake.Object) { o["SourceVIP"] = nodeIP })
		var reads atomic.Int64
		const slow = 10 * time.Millisecond
		b.hns.Inject(hnsfake.Fault{Func: "HcnOpenEndpoint", Times: -1, Do: func() {
			reads.Add(1)
			time.Sleep(slow)
		}})
		wait := func(what string, most int64, ok func() bool) {
			t.Helper()
			for begun := reads.Load(); !ok(); time.Sleep(slow) {
				if n := reads.Load() - begun; n > most {
					t.Fatalf("%s: not after %d reads", what, n)
				}
			}
		}
		time.Sleep(period - 2*defaultMinSync)
		for reads.Load() < 20 { // 122 endpoints are read
			time.Sleep(slow)
		}

		for i := range 10 {
			vip := fmt.Sprintf("10.99.4.%d", i+1)
			b.simple("late-"+vip, vip, "100.244.1.1")
			b.flush()
			wait(vip, int64(2*defaultMinSync/slow), func() bool { return b.loadBalancer(vip, 80) != nil })
		}
		wait("the load balancer that was changed by another program", 5000, func() bool {
			return b.loadBalancer("10.99.0.37", 80).SourceVIP == sourceVIP
		})
		stop()
	})
}

// Update and Status do not wait for an HNS that hangs.
func TestHangingHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hns.NetworkOverlay, newest, ownClock)
		release := make(chan struct{})
		b.hns.Inject(hnsfake.Fault{Func: "HcnEnumerateNetworks", Times: 1, Do: func() { <-release }})
		stop := b.run()
		synctest.Wait()
		begun := time.Now()
		time.Sleep(time.Hour)
		b.simple("web", "10.99.0.1", "100.244.1.1")
		b.flush()
		if s := b.plane.Detail(); !s.Busy || !s.Begun.Equal(begun) || !s.Queued.Equal(time.Now()) {
			t.Errorf("status %+v", s)
		}
		close(release)
		settle()
		if b.count() != 1 {
			t.Errorf("%d load balancers after HNS went on", b.count())
		}
		stop()
	})
}
