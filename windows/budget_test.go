package windows

import (
	"context"
	"testing"
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
	if len(calls) > 7000 {
		t.Errorf("a fresh start takes %d calls, want at most 7000", len(calls))
	}
	if b.count() != 200 || remotes(b) != 1200 {
		t.Fatalf("%d load balancers, %d remote endpoints", b.count(), remotes(b))
	}
	b.simple("web-007", "10.99.0.8", "100.244.1.36", "100.244.1.37", "100.244.1.38", "100.244.1.39", "100.244.2.251")
	calls = b.good()
	t.Logf("one endpoint change: %d calls", len(calls))
	if len(calls) > 30 || writes(calls) != 3 {
		t.Errorf("one endpoint change takes %d calls, %d of them writes", len(calls), writes(calls))
	}
	b.tracker.DeleteService("default", "web-008")
	if n := len(b.good()); n > 30 {
		t.Errorf("one Service less takes %d calls", n)
	}
	if n := len(b.sync()); n > 8 {
		t.Errorf("a sync with nothing to do takes %d calls", n)
	}
	if n := b.hns.OpenHandles(); n != 0 {
		t.Errorf("%d handles stay open", n)
	}
}

// What Run does by itself: it syncs, follows changes, audits, and stops when it is told to. An idle minute has two or three
// audits, for which there are 20 calls.
func TestRun(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.now, o.MinSync, o.AuditPeriod = time.Now, 10*time.Millisecond, 300*time.Millisecond
	})
	b.restart()
	b.many(20, 2)
	b.flush()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.plane.Run(ctx) }()
	eventually(t, "20 load balancers", func() bool { return b.count() == 20 })
	time.Sleep(50 * time.Millisecond)

	b.hns.Calls()
	time.Sleep(3 * b.opts.AuditPeriod)
	calls := b.hns.Calls()
	t.Logf("three audit periods: %d calls", len(calls))
	if n := len(calls); n == 0 || n > 20 || writes(calls) > 0 {
		t.Errorf("three audit periods take %d calls, %d of them writes", n, writes(calls))
	}

	b.hns.DropLoadBalancer(b.loadBalancer("10.99.0.3", 80).ID)
	eventually(t, "the lost load balancer", func() bool { return b.count() == 20 })
	b.simple("late", "10.99.3.3", "100.244.1.1")
	b.flush()
	eventually(t, "the new load balancer", func() bool { return b.count() == 21 })

	b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 1, Code: hns.CodeFail, Text: "busy"})
	b.simple("later", "10.99.3.4", "100.244.1.1")
	b.flush()
	eventually(t, "the load balancer that failed at first", func() bool { return b.count() == 22 })

	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s := b.plane.Detail(); s.Busy || s.Syncs < 4 || s.Counts.Created < 22 || s.Synced.IsZero() {
		t.Errorf("status %+v", s)
	}
}

// Update and Status do not wait for an HNS that hangs.
func TestHangingHNS(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) { o.now, o.MinSync = time.Now, time.Millisecond })
	release := make(chan struct{})
	b.hns.Inject(hnsfake.Fault{Func: "HcnEnumerateNetworks", Times: 1, Do: func() { <-release }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.plane.Run(ctx) }()
	eventually(t, "Run is busy", func() bool { return b.plane.Detail().Busy })
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.flush()
	if s := b.plane.Detail(); !s.Busy || s.Queued.Before(s.Begun) {
		t.Errorf("status %+v", s)
	}
	close(release)
	eventually(t, "the load balancer", func() bool { return b.count() == 1 })
	cancel()
	<-done
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}
