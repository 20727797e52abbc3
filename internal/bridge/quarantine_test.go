package bridge

import (
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

func named(name string) k8s.PortName {
	return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: name}}
}

// Pauses double from a second to a minute; the next try is that of whoever waits shortest.
func TestQuarantinePauses(t *testing.T) {
	now := time.Unix(1000, 0)
	q := quarantine{}
	if !q.next().IsZero() {
		t.Error("an empty quarantine has a next try")
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		q.refuse(named("a"), "no", now)
		if r := q[named("a")]; r.pause != want*time.Second || !r.until.Equal(now.Add(r.pause)) {
			t.Fatalf("after %d refusals the pause is %v, want %v s", r.count, r.pause, int(want))
		}
	}
	q.refuse(named("b"), "no", now)
	if got := q.next(); !got.Equal(now.Add(time.Second)) {
		t.Errorf("next try at %v", got)
	}
	if !q.waiting(named("b"), now) || q.waiting(named("b"), now.Add(time.Second)) || q.waiting(named("c"), now) {
		t.Error("who waits is wrong")
	}
}

// Only those are released who could be tried at that time: not one whose pause has ended since.
func TestQuarantineRelease(t *testing.T) {
	now := time.Unix(1000, 0)
	q := quarantine{}
	q.refuse(named("tried"), "no", now.Add(-time.Second))
	q.refuse(named("not yet"), "no", now)
	q.release(now)
	if q[named("tried")] != nil || q[named("not yet")] == nil {
		t.Errorf("after the release %v wait", q)
	}
}
