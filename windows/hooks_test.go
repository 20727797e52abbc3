package windows

import (
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// Who watches the node's health is told what waits and what is done: a change counts as done when it went through, and only if
// nothing has come in since.
func TestQueuedAndInStep(t *testing.T) {
	var told []string
	var b *bed
	var meanwhile func() // happens while HNS is at work
	b = newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.Hooks.Queued = func(...k8s.Family) { told = append(told, "queued") }
		o.Hooks.InStep = func(...k8s.Family) { told = append(told, "in step") }
		inner := o.Open
		o.Open = func() (hns.Host, error) {
			host, err := inner()
			return &spy{Host: host, creating: func() {
				if f := meanwhile; f != nil {
					meanwhile = nil
					f()
				}
			}}, err
		}
	})
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(told, want) {
			t.Errorf("%s: told %q, want %q", what, told, want)
		}
		told = nil
	}
	expect("at first", "queued")
	b.good()
	expect("a sync", "in step")

	b.simple("web", "10.99.0.1", "100.244.1.1")
	meanwhile = func() {
		b.simple("web", "10.99.0.1", "100.244.1.2")
		b.flush()
	}
	b.good()
	expect("a change during a sync", "queued", "queued")
	b.round()
	expect("the sync after it", "in step")

	b.clock = b.clock.Add(defaultAudit)
	b.hns.Inject(hnsfake.Fault{Func: "HcnEnumerateLoadBalancers", Times: 1, Code: hns.CodeFail, Text: "busy"})
	b.simple("late", "10.99.0.3", "100.244.1.4")
	b.sync()
	expect("a sync that fails", "queued")
	b.hns.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 1, Code: hns.CodePortExists, Text: "taken"})
	b.simple("new", "10.99.0.2", "100.244.1.3")
	b.sync()
	expect("HNS refuses one Service", "queued", "in step")
}

// HNS may not be up yet when the node starts: its version is asked for until it says it.
func TestVersionIsAskedForAgain(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.simple("web", "10.99.0.1", "100.244.1.1")
	b.hns.Inject(hnsfake.Fault{Func: "HNSCall", Times: 2, Code: hns.CodeFail, Text: "the service has not been started"})
	for range 2 {
		if n := writes(b.sync()); n != 0 {
			t.Errorf("%d changes in an HNS of unknown version", n)
		}
		if s := b.plane.Detail(); s.HNSVersion != "" || s.Features.Api.V2 || !strings.Contains(s.Error, "has not been started") {
			t.Errorf("status %+v", s)
		}
	}
	b.good()
	if s := b.plane.Detail(); s.HNSVersion != "15.5" || !s.Features.Api.V2 || !s.Features.SessionAffinity || !s.Features.Acl.AclRuleId {
		t.Errorf("status %+v", s)
	}
	b.mustHave("10.99.0.1", 80, "100.244.1.1")
	if n := hnsfake.Count(b.good(), "HNSCall"); n != 0 {
		t.Errorf("the version was asked for %d times more", n)
	}
}
