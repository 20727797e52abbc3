package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// The first change after a quiet period is passed on at once, those of a burst together, and none waits longer than a burst may last.
func TestBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const changes = 200 // one each millisecond
		m := newMailbox()
		type batch struct {
			n  int
			at time.Duration
		}
		start := time.Now()
		got := make(chan []batch)
		go func() { // ends when all changes have arrived
			var batches []batch
			for all := 0; all < changes; {
				<-m.arrived
				taken, _, _ := m.take()
				batches = append(batches, batch{len(taken), time.Since(start)})
				all += len(taken)
			}
			got <- batches
		}()
		for range changes {
			m.Apply([]k8s.Change{{}})
			time.Sleep(time.Millisecond)
		}
		batches := <-got
		if batches[0] != (batch{1, 0}) {
			t.Errorf("the first batch: %+v", batches[0])
		}
		// Every 50 ms one batch; where a change comes in the same millisecond as the end of a burst, one more.
		if most := 2*changes/int(burstMost/time.Millisecond) + 2; len(batches) > most {
			t.Errorf("%d batches, want at most %d", len(batches), most)
		}
		for i, b := range batches[1:] {
			if wait := b.at - batches[i].at; wait > burstMost+2*time.Millisecond {
				t.Errorf("batch %d came after %v", i+1, wait)
			}
		}
	})
}

// Changes that end a burst, and single ones after it, do not wait for others.
func TestBurstEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMailbox()
		apply := func() { m.Apply([]k8s.Change{{}}) }
		expect := func(what string, n int, after time.Duration) {
			t.Helper()
			start := time.Now()
			<-m.arrived
			if changes, _, _ := m.take(); len(changes) != n || time.Since(start) != after {
				t.Errorf("%s: %d changes after %v, want %d after %v", what, len(changes), time.Since(start), n, after)
			}
		}
		apply()
		expect("the first", 1, 0)
		apply()
		apply()
		expect("two at once after it", 2, burstGap)
		time.Sleep(burstGap)
		apply()
		expect("one after a pause", 1, 0)
		apply()
		m.Synced()
		expect("with the end of the list", 1, 0)
		time.Sleep(burstMost)
		select {
		case <-m.arrived:
			t.Error("the timer of a burst that was taken still runs")
		default:
		}
	})
}

// All that the source has reported is taken only when the box is empty: until then status names no revision of it.
func TestMailboxIsEmpty(t *testing.T) {
	m := newMailbox()
	if !m.empty() {
		t.Error("a new one is not empty")
	}
	m.Apply([]k8s.Change{{}})
	if m.empty() {
		t.Error("it is empty with a change in it")
	}
	if m.take(); !m.empty() {
		t.Error("it is not empty once all is taken")
	}
}
