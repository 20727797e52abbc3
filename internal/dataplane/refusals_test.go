package dataplane

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

func named(name string) k8s.PortName {
	return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: name}}
}

// Pauses double from a second to a minute; the next try is that of what waits shortest; what was taken starts afresh.
func TestRefusals(t *testing.T) {
	now := time.Unix(1000, 0)
	var last Refusal
	r := NewRefusals[k8s.PortName]("the switch", slog.New(slog.DiscardHandler), func(f Refusal) { last = f })
	if !r.Next().IsZero() {
		t.Error("there is a next try of nothing")
	}
	a, b := named("a"), named("b")
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		r.Refuse(a, Refusal{Port: a, Reason: "no"}, now)
		if f := last; f.Times != i+1 || !f.RetryAt.Equal(now.Add(want*time.Second)) {
			t.Fatalf("refusal %d: %+v, want %v s", i+1, f, int(want))
		}
	}
	r.Refuse(b, Refusal{Port: b, Reason: "no"}, now)
	if got := r.Next(); !got.Equal(now.Add(time.Second)) {
		t.Errorf("next try at %v", got)
	}
	if !r.Waits(b, now) || r.Waits(b, now.Add(time.Second)) || r.Waits(named("c"), now) {
		t.Error("what waits is wrong")
	}
	if list := r.All(); len(list) != 2 || list[0].Port != a || list[1].Port != b {
		t.Errorf("in the order of names: %v", list)
	}
	r.ForgetIf(func(n k8s.PortName) bool { return n == a })
	r.Refuse(a, Refusal{Port: a}, now)
	if f := last; f.Times != 1 || f.RetryAt.Sub(now) != time.Second || r.Len() != 2 {
		t.Errorf("refused again after it was taken: %+v", f)
	}
}
