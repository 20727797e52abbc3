package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// processBegan is when this package was initialised: some 10 ms after the system started the process.
var processBegan = time.Now()

// startup records how far the start has come. Its methods may be called from any goroutine.
type startup struct {
	mu                            sync.Mutex    // protects all below
	chosen, synced, model, inStep time.Duration // since processBegan; 0: not yet
}

// record records the time at which the start reached a step, a field of b. It returns false if that was
// recorded before.
func (b *startup) record(step *time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if *step != 0 {
		return false
	}
	*step = time.Since(processBegan)
	return true
}

// startedUp ends the start, the first time that it is called.
func (a *Agent) startedUp() {
	if !a.startup.record(&a.startup.inStep) {
		return
	}
	a.settling.in(settleAfter)
	if a.spawn != nil { // nil in tests
		a.spawn(func(ctx context.Context) error { a.takeOver(ctx); return nil })
	}
	b := &a.startup
	b.mu.Lock()
	defer b.mu.Unlock()
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	a.log.Info("Services are programmed for the first time",
		"mode", a.mode, "took", ms(b.inStep), "findingTheDataPlane", ms(b.chosen),
		"source", ms(b.synced-b.chosen), "model", ms(b.model-b.synced), "programming", ms(b.inStep-b.model))
}

// startStatus returns how the start went.
func (a *Agent) startStatus() api.StartStatus {
	b := &a.startup
	b.mu.Lock()
	defer b.mu.Unlock()
	s := api.StartStatus{
		Chosen: milliseconds(b.chosen), Synced: milliseconds(b.synced), Model: milliseconds(b.model),
		InStep: milliseconds(b.inStep), Lists: []api.ListStatus{},
	}
	if server, ok := a.source.(interface{ FirstLists() []apiserver.ListStats }); ok {
		for _, l := range server.FirstLists() {
			s.Lists = append(s.Lists, api.ListStatus{ListStats: l, Milli: milliseconds(b.chosen + l.Took)})
		}
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
