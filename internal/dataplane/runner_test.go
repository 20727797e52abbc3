package dataplane

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// fakeSteps records at which second which step was done.
type fakeSteps struct {
	r       *Runner
	begun   time.Time
	taken   int
	steps   []int // seconds
	noticed int
	busy    atomic.Bool // a Step fails
	changed Signal
}

func (s *fakeSteps) Take(*Update)             { s.taken++ }
func (s *fakeSteps) Changed() <-chan struct{} { return s.changed }
func (s *fakeSteps) Next() time.Time          { return s.begun.Add(time.Hour) }

func (s *fakeSteps) Step(context.Context) error {
	s.steps = append(s.steps, int(time.Since(s.begun)/time.Second))
	if s.r.Noticed {
		s.noticed, s.r.Noticed = s.noticed+1, false
	}
	if s.busy.Load() {
		return errors.New("busy")
	}
	s.r.InForce()
	return nil
}

// A Runner works at once after a change, rests between two steps however many changes there are, and longer after each failure.
func TestRunner(t *testing.T) { synctest.Test(t, testRunner) }

func testRunner(t *testing.T) {
	r := &Runner{In: NewInbox(func(...k8s.Family) {}), Rest: func(time.Time) time.Duration { return 10 * time.Second }}
	s := &fakeSteps{r: r, begun: time.Now(), changed: NewSignal()}
	var pauses []time.Duration
	r.Failed = func(_ error, pause time.Duration) { pauses = append(pauses, pause) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx, s, "a test") }()
	at := func(second int) {
		time.Sleep(time.Until(s.begun.Add(time.Duration(second) * time.Second)))
		synctest.Wait()
	}
	at(2) // nothing is known of the node
	s.changed.Notify()
	at(3)
	r.In.Put(&k8s.Model{}, k8s.Changes{Node: true})
	for i := 4; i < 13; i++ { // in the pause
		at(i)
		r.In.Put(&k8s.Model{}, k8s.Changes{Node: true})
	}
	at(13)
	if !slices.Equal(s.steps, []int{3, 13}) || s.taken != 2 || s.noticed != 1 || r.changes.Programming().Changes != 2 {
		t.Errorf("steps at %v s, %d updates, %d notices, %+v", s.steps, s.taken, s.noticed, r.changes.Programming())
	}

	s.busy.Store(true)
	at(30)
	s.changed.Notify()
	at(34)
	s.busy.Store(false)
	at(60)
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}
	if !slices.Equal(s.steps[2:], []int{30, 31, 33, 37}) || !slices.Equal(pauses, want) {
		t.Errorf("steps at %v s, pauses %v", s.steps[2:], pauses)
	}
	cancel()
	<-done
}

// A Runner takes one portion of a large Service for each Step, however long it rests, so that the change of another one waits for no more.
func TestRunnerTakesPortions(t *testing.T) {
	now := time.Now()
	r := &Runner{In: begunInbox(), Rest: func(time.Time) time.Duration { return time.Minute }, Now: func() time.Time { return now }}
	s := &fakeSteps{r: r, begun: now}
	r.In.Put(&k8s.Model{}, k8s.Changes{Node: true})
	for i := range 5 {
		put(r.In, portOf("large", i, Portion, 5*Portion, i))
	}
	for range 3 {
		for range 3 {
			r.Round(t.Context(), s)
		}
		now = now.Add(time.Minute)
	}
	if len(s.steps) != 3 || s.taken != 3 || r.In.Idle() || !r.In.Divided() {
		t.Errorf("%d steps, %d updates taken, none left: %t", len(s.steps), s.taken, r.In.Idle())
	}
	small := portOf("small", 0, 30, 30, 9)
	put(r.In, small)
	if u := r.In.Take(); u.Ports[small.Name] == nil {
		t.Errorf("a change is not in the next update: %v", u.Ports)
	}
	for !r.In.Idle() {
		r.In.Take()
	}
	if r.In.Divided() {
		t.Error("nothing is left, and it is divided")
	}
}
