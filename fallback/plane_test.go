package fallback

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// What begins must not wait for ever for what cannot be had: a family has been tried when it is in step, or has failed.
func TestTried(t *testing.T) {
	p, err := New(fakeKernel{}, DefaultOptions())
	must(t, err)
	for _, step := range []struct {
		what   string
		family k8s.Family
		change func(*FamilyStatus)
		want   bool
	}{
		{"at first", k8s.IPv4, func(*FamilyStatus) {}, false},
		{"one family in step", k8s.IPv4, func(s *FamilyStatus) { s.InStep = true }, false},
		{"the other refused", k8s.IPv6, func(s *FamilyStatus) { s.LastError = "no such table" }, true},
		{"something new", k8s.IPv4, func(s *FamilyStatus) { s.InStep = false }, false},
	} {
		p.report(step.family, step.change)
		if got := p.Tried(); got != step.want {
			t.Errorf("%s: tried is %t, want %t", step.what, got, step.want)
		}
	}
}

// The plane is in step when each family is and nothing is refused; otherwise it says why it is not.
func TestInStep(t *testing.T) {
	p, err := New(fakeKernel{}, DefaultOptions())
	must(t, err)
	web := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "web"}, Protocol: "TCP", Family: k8s.IPv6}
	for _, step := range []struct {
		what   string
		family k8s.Family
		change func(*FamilyStatus)
		why    string // "": in step
	}{
		{"one family", k8s.IPv4, func(s *FamilyStatus) { s.InStep = true }, "IPv6: the rules are not"},
		{"a failure", k8s.IPv6, func(s *FamilyStatus) { s.LastError = "no such table" }, "no such table"},
		{"both", k8s.IPv6, func(s *FamilyStatus) { s.InStep, s.LastError = true, "" }, ""},
		{"connections to delete", k8s.IPv6, func(s *FamilyStatus) { s.closing = "not deleted" }, "not deleted"},
		{"deleted", k8s.IPv6, func(s *FamilyStatus) { s.closing = "" }, ""},
		{"a refusal", k8s.IPv6, func(s *FamilyStatus) { s.refuse([]dataplane.Refusal{{Port: web, Reason: "bad rule"}}) }, "IPv6: iptables refuses 1 Service port"},
		{"taken", k8s.IPv6, func(s *FamilyStatus) { s.refuse(nil) }, ""},
	} {
		p.report(step.family, step.change)
		s, err := p.Status(t.Context())
		if err != nil || s.InStep != (step.why == "") || !strings.Contains(s.Why, step.why) || len(s.Refusals) != len(s.Detail.(*Status).Families[1].Refused) {
			t.Errorf("%s: %+v, %v", step.what, s, err)
		}
	}
}

// Every family is queued before one can be done, so that nkp is not taken for ready with one of them. A family that the node cannot serve
// is not waited for, found out before or after the first update.
func TestFamiliesAreQueuedTogether(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, after []k8s.Family // dropped before the first update, or after it
		want          string
	}{
		{"both", nil, nil, "+IPv4 +IPv6 +"},
		{"one, before", []k8s.Family{k8s.IPv6}, nil, "+IPv4 +IPv4"},
		{"one, after", nil, []k8s.Family{k8s.IPv6}, "+IPv4 +IPv6 +"},
	} {
		var calls []string
		o := DefaultOptions()
		o.Hooks.Queued = func(fs ...k8s.Family) { calls = append(calls, "+"+fs[0].String()) }
		o.Hooks.InStep = func(fs ...k8s.Family) { calls = append(calls, "-"+fs[0].String()) }
		p, err := New(fakeKernel{}, o)
		must(t, err)
		for _, f := range tc.before {
			p.drop(f)
		}
		p.Update(&k8s.Model{}, k8s.Changes{Node: true})
		for _, f := range tc.after {
			p.drop(f)
		}
		got := strings.Join(calls, " ")
		if !strings.HasPrefix(got, tc.want) || strings.HasSuffix(got, "-IPv6") != (tc.after != nil) {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
}

// The first reader of the node's counters waits for them. Later ones get the last ones if a new list takes too long, and an error once
// listing has failed; there is one list at a time.
func TestSlowNodeCounters(t *testing.T) { synctest.Test(t, testSlowNodeCounters) }

func testSlowNodeCounters(t *testing.T) {
	next, lists := make(chan error), uint64(0)
	p, err := New(fakeKernel{count: func() (NodeCounters, error) {
		lists++
		n := lists
		return NodeCounters{Localhost: &n}, <-next
	}}, DefaultOptions())
	must(t, err)
	p.Chosen("nf_tables", "", "", true)
	hurry, cancel := context.WithCancel(t.Context())
	cancel()

	go func() { next <- nil }()
	for range 2 { // the second result is reused
		if n, err := p.NodeCounters(hurry); err != nil || *n.Localhost != 1 {
			t.Fatalf("first: %v, %v", n, err)
		}
	}
	time.Sleep(nodeCountersAge)
	for range 3 {
		if n, err := p.NodeCounters(hurry); err != nil || *n.Localhost != 1 {
			t.Fatalf("while a list is made: %v, %v", n, err)
		}
	}
	next <- errors.New("no iptables")
	synctest.Wait()
	if _, err := p.NodeCounters(hurry); err == nil {
		t.Error("no error after one")
	}
	next <- nil
	synctest.Wait()
	if n, err := p.NodeCounters(t.Context()); err != nil || *n.Localhost != 3 || lists != 3 {
		t.Errorf("after it: %v, %v; %d lists", n, err, lists)
	}
}

// fakeKernel is of a plane that is not run.
type fakeKernel struct {
	Kernel
	count func() (NodeCounters, error)
}

func (k fakeKernel) CountNode(context.Context, Options, string) (NodeCounters, error) {
	return k.count()
}

func (fakeKernel) Name() string { return "iptables" }

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A plane is behind while a family has not in force what had come by then, and no longer for what comes later. A family that the node
// cannot serve is not waited for.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(fakeKernel{}, DefaultOptions())
		must(t, err)
		now := func() time.Time { time.Sleep(time.Second); defer time.Sleep(time.Second); return time.Now() }
		update := func() time.Time {
			c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
			for _, f := range dataplane.Families {
				n := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: "web"}, Protocol: "TCP", Family: f}
				c.Ports[n] = &k8s.ServicePort{Name: n}
			}
			p.Update(&k8s.Model{}, c)
			return now()
		}
		expect := func(when string, by time.Time, want string) {
			t.Helper()
			if got := p.Behind(t.Context(), by, true); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		settle := func(f k8s.Family) { p.inbox[f].Take(); p.inbox[f].Settled() }

		expect("before the first update", now(), "IPv")
		first := update()
		expect("queued", first, "IPv")
		settle(k8s.IPv4)
		expect("one family in force", first, "IPv6: the rules are not in step yet")
		p.report(k8s.IPv6, func(s *FamilyStatus) { s.LastError = "no such table" })
		expect("the other failed", first, "no such table")
		settle(k8s.IPv6)
		expect("both in force", first, "")
		p.report(k8s.IPv6, func(s *FamilyStatus) { s.LastError, s.closing = "", "IPv6: connections" })
		expect("connections still to be deleted", first, "IPv6: connections")
		if got := p.Behind(t.Context(), first, false); got != "" {
			t.Errorf("a Service that keeps connections waits for those of others: %q", got)
		}
		p.report(k8s.IPv6, func(s *FamilyStatus) { s.LastForgetError = "not permitted" })
		expect("they cannot be deleted", first, "IPv6: connections: not permitted")
		p.report(k8s.IPv6, func(s *FamilyStatus) { s.closing, s.LastForgetError = "", "" })
		second := update()
		expect("another update, asked for the first", first, "")
		expect("another update", second, "IPv")
		settle(k8s.IPv4)
		p.drop(k8s.IPv6)
		expect("the node cannot serve the other", second, "")
	})
}
