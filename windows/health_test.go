package windows

import (
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// A load balancer that HNS reports as degraded is created again, once HNS has said so twice. Log, Event and status name it meanwhile.
func TestDegradedLoadBalancerIsReplaced(t *testing.T) {
	var told []dataplane.Refusal
	b := newBed(t, hns.NetworkOverlay, newest, func(o *Options) {
		o.Hooks.Refused = func(r dataplane.Refusal) { told = append(told, r) }
	})
	b.many(5, 2)
	b.good()
	before := b.hns.Dump()
	for _, vip := range []string{"10.99.0.1", "10.99.0.2", "10.99.0.3"} {
		b.hns.SetState(b.loadBalancer(vip, 80).ID, 4)
	}
	if n := writes(b.good()); n != 0 {
		t.Errorf("%d writes before the States were read", n)
	}
	b.clock = b.clock.Add(statePeriod)
	if n := writes(b.sync()); n != 0 {
		t.Errorf("%d writes after one look", n)
	}
	if s, err := b.plane.Status(t.Context()); err != nil || s.InStep || len(s.Refusals) != 3 || !strings.Contains(s.Refusals[0].Reason, "HNS reports State 4") {
		t.Errorf("%v, status %+v", err, s)
	}
	if len(told) != 3 || told[0].Port.String() != "default/web-000" || strings.Count(b.log.String(), "HNS reports State 4") != 3 {
		t.Errorf("told %+v; the log has\n%s", told, b.log.String())
	}
	if n := deletions(b.sync()); n != 1 {
		t.Errorf("%d load balancers were replaced, want one to see whether that helps", n)
	}
	if n := deletions(b.sync()); n != 2 {
		t.Errorf("%d load balancers were replaced, want the two others", n)
	}
	b.good()
	if s, _ := b.plane.Status(t.Context()); !s.InStep || b.hns.Dump() != before {
		t.Errorf("status %+v; HNS has\n%s", s, b.hns.Dump())
	}
	calls := b.good()
	if n := hnsfake.Count(calls, "HNSCall"); n != 0 || writes(calls) != 0 {
		t.Errorf("with all in order %d reads of States, %d writes", n, writes(calls))
	}
}

// Where creating a load balancer again does not help, nkp stops after one, because the meaning of a State is not documented.
func TestStateThatStays(t *testing.T) {
	b := newBed(t, hns.NetworkOverlay, newest)
	b.many(5, 2)
	b.hns.SetState("", 1)
	b.good()
	b.clock = b.clock.Add(statePeriod)
	deleted := 0
	for range 10 {
		deleted += deletions(b.sync())
	}
	if deleted != 1 {
		t.Errorf("%d load balancers were replaced, want 1", deleted)
	}
	if s, _ := b.plane.Status(t.Context()); len(s.Refusals) != 5 || !strings.Contains(s.Refusals[0].Reason, "does not help") {
		t.Errorf("status %+v", s)
	}
	b.mustHave("10.99.0.5", 80, "100.244.1.9", "100.244.1.10")
	b.clock = b.clock.Add(2 * defaultFullAudit)
	deleted = 0
	for range 10 {
		deleted += deletions(b.sync())
	}
	if deleted != 1 {
		t.Errorf("%d load balancers were replaced after the next full read, want 1", deleted)
	}
}

// An HNS that reports no States, or does not answer, changes nothing.
func TestNoStates(t *testing.T) {
	for name, break_ := range map[string]func(*hnsfake.Server){
		"hidden": (*hnsfake.Server).HideStates,
		"error": func(s *hnsfake.Server) {
			s.Inject(hnsfake.Fault{Func: "HNSCall", Times: -1, Code: hns.CodeFail, Text: "no", Match: func(a []string) bool { return a[1] == "/policylists" }})
		},
	} {
		b := newBed(t, hns.NetworkOverlay, newest)
		break_(b.hns)
		b.many(5, 2)
		b.good()
		for range 3 {
			b.clock = b.clock.Add(statePeriod)
			if n := writes(b.good()); n != 0 {
				t.Errorf("%s: %d writes", name, n)
			}
		}
		if n := strings.Count(b.log.String(), "cannot read the States"); n != map[string]int{"hidden": 0, "error": 1}[name] {
			t.Errorf("%s: the log says so %d times", name, n)
		}
		if s, _ := b.plane.Status(t.Context()); !s.InStep {
			t.Errorf("%s: status %+v", name, s)
		}
	}
}
