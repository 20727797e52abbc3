package iptables

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// An update interrupts a full read-back, which takes seconds in large tables; the read-back is repeated later. A read-back that has
// been postponed for longer than lookPatience is not interrupted any more.
func TestUpdateBeforeTheLook(t *testing.T) { synctest.Test(t, testUpdateBeforeTheLook) }

func testUpdateBeforeTheLook(t *testing.T) {
	s := newStage(t)
	s.put(generated(1))
	s.step()
	s.must("at first")

	errStuck := errors.New("not interrupted")
	for _, tc := range []struct {
		due  time.Time // of the full read-back
		want error
	}{{time.Now().Add(-time.Second), context.Canceled}, {time.Now().Add(-2 * fullCheckPatience), errStuck}} {
		var got error
		s.tables.reading = func(ctx context.Context) error {
			s.put(generated(2))
			synctest.Wait() // until the update could do no more
			if got = ctx.Err(); got == nil {
				got = errStuck
			}
			return got
		}
		s.worker.fullCheckAt = tc.due
		s.worker.check(t.Context())
		if !errors.Is(got, tc.want) {
			t.Errorf("read-back due %v ago, then an update: %v, want %v", time.Since(tc.due).Round(time.Second), got, tc.want)
		}
		s.tables.reading = nil
		if errors.Is(tc.want, context.Canceled) {
			if s.status.LastError != "" || s.status.Repairs != 0 || !s.worker.fullCheckAt.Equal(tc.due) {
				t.Errorf("after an interrupted read-back: %+v, due at %v", s.status, s.worker.fullCheckAt)
			}
			select {
			case <-s.in.Signal:
			default:
				t.Error("the update did not signal the worker")
			}
		}
		s.worker.NotUntil = time.Time{}
		s.step()
		s.must("after the update")
	}
}

// A read-back that finds every rule unchanged is recorded with its time. One that finds a Service's chain changed names the Service
// and clears that time.
func TestLookTellsWhatItSaw(t *testing.T) { synctest.Test(t, testLookTellsWhatItSaw) }

func testLookTellsWhatItSaw(t *testing.T) {
	s := newStage(t)
	p := generatePort(0)
	s.put(generated(1))
	s.step()
	s.must("at first")
	if !s.status.Compared.IsZero() || s.status.Audits != 0 {
		t.Errorf("nothing was read back yet, but %d times, last at %v", s.status.Audits, s.status.Compared)
	}
	look := func() {
		s.worker.fullCheckAt = time.Now().Add(-time.Second)
		s.worker.check(t.Context())
	}
	look()
	if !s.status.Compared.Equal(time.Now()) || s.status.Audits != 1 || s.status.LastRepair != nil {
		t.Errorf("after a read-back: %+v", s.status)
	}
	nat, broken := s.tables.tables["nat"], ""
	for name := range nat {
		if rules.IsServiceChain(name) && len(nat[name]) > 0 {
			broken = name
		}
	}
	nat[broken] = nil
	look()
	if r := s.status.LastRepair; r == nil || !strings.Contains(r.What, "chain "+broken+" of "+p.Name.String()) || !s.status.Compared.IsZero() || s.status.Audits != 1 {
		t.Errorf("chain %s of %s was flushed: %+v, compared at %v", broken, p.Name, r, s.status.Compared)
	}
}

// A failed read-back is shown until one succeeds, and is tried again soon. Changes are programmed meanwhile.
func TestFailedReadBackIsShown(t *testing.T) { synctest.Test(t, testFailedReadBackIsShown) }

func testFailedReadBackIsShown(t *testing.T) {
	s := newStage(t)
	s.put(generated(1))
	s.step()
	s.must("at first")
	due := func() {
		s.worker.CheckAt, s.worker.fullCheckAt = time.Now().Add(-time.Second), time.Now().Add(-time.Second)
	}
	s.tables.reading = func(context.Context) error { return errors.New("lock is held") }
	due()
	s.step()
	failed := func(when string) {
		t.Helper()
		if s.status.InStep || !strings.Contains(s.status.LastError, "cannot read back the installed rules: lock is held") {
			t.Errorf("%s: in step %t, last error %q", when, s.status.InStep, s.status.LastError)
		}
		if in := time.Until(s.worker.Next()); in > time.Minute || in > 2*time.Duration(s.worker.verifyPause) {
			t.Errorf("%s: read back again in %v", when, in)
		}
	}
	failed("a read-back that fails")
	s.put(generated(2))
	s.step()
	s.tables.reading = nil
	s.must("a change after that")
	failed("a change after that")
	s.worker.CheckAt = time.Now().Add(-time.Second)
	s.step()
	if !s.status.InStep || s.status.LastError != "" {
		t.Errorf("after a read-back: in step %t, last error %q", s.status.InStep, s.status.LastError)
	}
}

// The rules that protect 127.0.0.0/8 are repaired soon after a repair that failed, which is shown. Changes are programmed meanwhile.
func TestFailedRepairOfTheGuardIsShown(t *testing.T) {
	s := newStage(t)
	setting := &fakeSetting{}
	s.worker.Localnet = fallback.NewLocalnet(setting, false, slog.New(slog.DiscardHandler))
	s.put(generated(1))
	s.step()
	s.must("at first")
	if !setting.is {
		t.Fatal("route_localnet is not set")
	}
	if first, _, _ := strings.Cut(s.tables.input.String(), "COMMIT\n"); !strings.Contains(first, "-A "+rules.LocalFirewall+" ") {
		t.Errorf("the first transaction does not install the guard:\n%s", first)
	}
	s.tables.tables["filter"][rules.LocalFirewall] = nil
	s.tables.refuse = func(line string) bool { return strings.HasPrefix(line, "-A "+rules.LocalFirewall+" ") }
	s.worker.guardAt = time.Now().Add(-time.Second)
	for range 2 {
		s.step()
		if s.status.InStep || !strings.Contains(s.status.LastError, "the rules that protect 127.0.0.0/8") || setting.is {
			t.Errorf("the guard cannot be repaired: in step %t, last error %q, route_localnet %t", s.status.InStep, s.status.LastError, setting.is)
		}
	}
	s.tables.refuse = nil
	s.worker.guardAt = time.Now().Add(-time.Second)
	s.step()
	s.must("after the repair")
	if !s.status.InStep || s.status.LastError != "" || !setting.is {
		t.Errorf("after the repair: in step %t, last error %q, route_localnet %t", s.status.InStep, s.status.LastError, setting.is)
	}
}

// A route_localnet that another program has set is not unset, nor taken for nkp's own, even if the guard cannot be installed at first.
func TestForeignLocalnetStays(t *testing.T) {
	s := newStage(t)
	setting := &fakeSetting{is: true}
	s.put(generated(1))
	s.tables.refuse = func(line string) bool { return strings.HasPrefix(line, "-A "+rules.LocalFirewall+" ") }
	for _, refused := range []bool{true, false} { // nkp ends between the two
		s.restart(nftLimits)
		s.worker.Localnet = fallback.NewLocalnet(setting, false, slog.New(slog.DiscardHandler))
		s.step()
		s.tables.refuse = nil
		if !setting.is {
			t.Errorf("guard refused %t: route_localnet is unset", refused)
		}
	}
	s.must("at last")
}

// fakeSetting is a kernel setting in memory.
type fakeSetting struct{ is bool }

func (f *fakeSetting) On() (bool, error) { return f.is, nil }

func (f *fakeSetting) Set(on bool) error { f.is = on; return nil }

func (f *fakeSetting) Recorded() bool { return f.is }

// Every rule is read back once in each sync period, although that takes some time itself.
func TestEveryPeriodReadsBack(t *testing.T) { synctest.Test(t, testEveryPeriodReadsBack) }

func testEveryPeriodReadsBack(t *testing.T) {
	s := newStage(t)
	s.put(generated(1))
	s.step()
	s.must("at first")
	s.tables.reading = func(context.Context) error {
		time.Sleep(100 * time.Millisecond)
		return nil
	}
	for period := 1; period <= 5; period++ {
		time.Sleep(time.Until(s.worker.CheckAt))
		s.worker.verify(t.Context())
		if s.status.Audits != period {
			t.Fatalf("after %d periods every rule was read back %d times", period, s.status.Audits)
		}
	}
}
