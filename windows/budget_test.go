package windows

import (
	"context"
	"fmt"
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
	if len(calls) > 6622 {
		t.Errorf("a fresh start takes %d calls, want at most 6622", len(calls))
	}
	if b.count() != 200 || remotes(b) != 1200 {
		t.Fatalf("%d load balancers, %d remote endpoints", b.count(), remotes(b))
	}
	b.simple("web-007", "10.99.0.8", "100.244.1.36", "100.244.1.37", "100.244.1.38", "100.244.1.39", "100.244.2.251")
	calls = b.good()
	t.Logf("one endpoint change: %d calls", len(calls))
	if len(calls) > 16 || writes(calls) != 3 {
		t.Errorf("one endpoint change takes %d calls, %d of them writes", len(calls), writes(calls))
	}
	b.tracker.DeleteService("default", "web-008")
	if n := len(b.good()); n > 30 {
		t.Errorf("one Service less takes %d calls", n)
	}
	if n := len(b.sync()); n > 8 {
		t.Errorf("a sync with nothing to do takes %d calls", n)
	}
	minute := 0
	for range 2 {
		b.clock = b.clock.Add(defaultAudit)
		minute += len(b.sync())
	}
	t.Logf("an idle minute: %d calls", minute)
	if minute > 13 { // one of them reads the States, every five minutes
		t.Errorf("an idle minute takes %d calls, want at most 13", minute)
	}
	b.restart()
	if n := writes(b.good()); n != 0 {
		t.Errorf("a restart makes %d writes", n)
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

// The hourly read of every object takes long; changes do not wait for it, and it ends although they keep coming.
func TestChangesDuringFullRead(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.now, o.MinSync, o.FullAuditPeriod = time.Now, time.Millisecond, 2*time.Second
	})
	b.many(100, 2)
	b.flush()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.plane.Run(ctx) }()
	eventually(t, "all load balancers", func() bool { return b.count() == 100 })
	lost := b.loadBalancer("10.99.0.77", 80).ID
	b.hns.ChangeLoadBalancer(lost, func(o hnsfake.Object) { o["SourceVIP"] = nodeIP })
	reads := make(chan struct{}, 10000)
	b.hns.Inject(hnsfake.Fault{Func: "HcnOpenEndpoint", Times: -1, Do: func() {
		reads <- struct{}{}
		time.Sleep(10 * time.Millisecond)
	}})
	time.Sleep(2500 * time.Millisecond)
	b.simple("wake", "10.99.3.1", "100.244.1.1") // the audit comes late otherwise
	b.flush()
	for range 20 {
		<-reads
	}
	var worst time.Duration
	for i := range 10 {
		vip := fmt.Sprintf("10.99.4.%d", i+1)
		began := time.Now()
		b.simple("late-"+vip, vip, "100.244.1.1")
		b.flush()
		eventually(t, vip, func() bool { return b.loadBalancer(vip, 80) != nil })
		worst = max(worst, time.Since(began))
	}
	if n := len(reads); n > 200 {
		t.Fatalf("%d endpoints were read meanwhile: the changes came after the read", n)
	}
	t.Logf("a read of 302 endpoints takes more than 3 s; 10 changes during it took at most %v", worst)
	if worst > 2*time.Second {
		t.Errorf("a change waited %v", worst)
	}
	eventually(t, "the load balancer that was changed by another program", func() bool { return b.loadBalancer("10.99.0.77", 80).SourceVIP == sourceVIP })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
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
