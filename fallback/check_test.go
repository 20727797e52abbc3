package fallback

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// An update does not wait for a look at every rule, which takes seconds where there are many: the look gives way, and is
// taken another time. One that was put off for too long gives way no more.
func TestUpdateBeforeTheLook(t *testing.T) {
	s := newStage(t)
	r := rand.New(rand.NewPCG(1, 2))
	put := func(n int) {
		p := randomPort(r, n)
		s.put(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{p.Name: p}})
	}
	put(1)
	s.step()
	s.must("at first")

	errStuck := errors.New("nothing disturbed it")
	for _, tc := range []struct {
		due  time.Time // the close look
		want error
	}{{time.Now().Add(-time.Second), context.Canceled}, {time.Now().Add(-2 * lookPatience), errStuck}} {
		var got error
		s.tables.reading = func(ctx context.Context) error {
			put(2)
			select {
			case <-ctx.Done():
				got = ctx.Err()
			case <-time.After(200 * time.Millisecond):
				got = errStuck
			}
			return got
		}
		s.worker.deepAt = tc.due
		s.worker.check(t.Context())
		if !errors.Is(got, tc.want) {
			t.Errorf("a look due %v ago, and an update: %v, want %v", time.Since(tc.due).Round(time.Second), got, tc.want)
		}
		s.tables.reading = nil
		if errors.Is(tc.want, context.Canceled) {
			if s.status.LastError != "" || s.status.Repairs != 0 || !s.worker.deepAt.Equal(tc.due) {
				t.Errorf("a look that gave way: %+v, due at %v", s.status, s.worker.deepAt)
			}
			select {
			case <-s.in.Signal:
			default:
				t.Error("the worker is not told of the update")
			}
		}
		s.worker.notUntil = time.Time{}
		s.step()
		s.must("after the update")
	}
}

// A read-back that finds every rule unchanged is recorded with its time. One that finds a Service's chain changed names the Service
// and clears that time.
func TestLookTellsWhatItSaw(t *testing.T) {
	s := newStage(t)
	r := rand.New(rand.NewPCG(1, 2))
	p := randomPort(r, 1)
	for len(p.ClusterEndpoints) == 0 {
		p = randomPort(r, 1)
	}
	s.put(k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{p.Name: p}})
	s.step()
	s.must("at first")
	if !s.status.Compared.IsZero() {
		t.Errorf("nothing was read back since, and yet at %v", s.status.Compared)
	}
	look := func() {
		s.worker.deepAt = time.Now().Add(-time.Second)
		s.worker.check(t.Context())
	}
	look()
	if time.Since(s.status.Compared) > time.Minute || s.status.LastRepair != nil {
		t.Errorf("after a look: %+v", s.status)
	}
	nat, broken := s.tables.tables["nat"], ""
	for name := range nat {
		if rules.IsServiceChain(name) && len(nat[name]) > 0 {
			broken = name
		}
	}
	nat[broken] = nil
	look()
	if r := s.status.LastRepair; r == nil || !strings.Contains(r.What, "chain "+broken+" of "+p.Name.String()) || !s.status.Compared.IsZero() {
		t.Errorf("chain %s of %s was flushed: %+v, compared at %v", broken, p.Name, r, s.status.Compared)
	}
}
