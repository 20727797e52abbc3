package dataplane

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// A fault is claimed of two lost canaries in a row, and stays until one passes: neither one that is lost, nor one that shows nothing, is a
// fault or the end of one. A full table is named as such. Families do not wait for each other.
func TestCanary(t *testing.T) { synctest.Test(t, testCanary) }

func testCanary(t *testing.T) {
	lost, full := CanaryResult{Lost: "here"}, CanaryResult{Lost: "full", Full: true}
	passed, unknown := CanaryResult{Passed: []string{"a", "b"}}, CanaryResult{Unknown: "away"}
	steps := []struct {
		r     CanaryResult
		fault string
		full  bool
	}{
		{unknown, "", false}, {passed, "", false}, {lost, "", false}, {passed, "", false}, {lost, "", false}, {unknown, "", false},
		{lost, "here", false}, {unknown, "here", false}, {full, "full", true}, {lost, "here", false}, {passed, "", false},
	}
	var told []CanaryVerdict
	again := []bool{}
	var step atomic.Int64 // changes between two canaries
	ctx, cancel := context.WithCancel(t.Context())
	c := NewCanary("ovs", slog.New(slog.DiscardHandler), func(v CanaryVerdict) {
		if v.Family == "IPv4" {
			told = append(told, v)
		}
	}, Families, func(ctx context.Context, f k8s.Family, lostBefore bool) CanaryResult {
		if f == k8s.IPv6 {
			time.Sleep(time.Second)
			return passed
		}
		again = append(again, lostBefore)
		return steps[step.Load()].r
	})
	go c.Run(ctx)
	time.Sleep(CanaryPeriod / 2)
	for i := range steps {
		if i > 0 {
			step.Store(int64(i))
			time.Sleep(CanaryPeriod)
		}
		synctest.Wait()
		v := c.Verdicts()[0]
		if v.Fault != steps[i].fault || v.Full != steps[i].full || v.Unknown != steps[i].r.Unknown || (v.FaultSince != nil) != (v.Fault != "") {
			t.Errorf("%d: %+v", i, v)
		}
		if w := v.Warning(); strings.HasSuffix(w, ": "+v.Fault) != (v.Fault != "") {
			t.Errorf("%d: warning %q", i, w)
		}
		if told[len(told)-1].Fault != steps[i].fault || len(told) != i+1 {
			t.Errorf("%d: told %+v", i, told)
		}
	}
	v := c.Verdicts()
	if v[0].Sent["passed"] != 3 || v[0].Sent["lost"] != 4 || v[0].Sent["full"] != 1 || v[0].Sent["unknown"] != 3 || !slices.Equal(v[0].Passed, passed.Passed) {
		t.Errorf("%+v", v[0])
	}
	if want := []bool{false, false, false, true, false, true, true, true, true, true, true}; !slices.Equal(again, want) {
		t.Errorf("again %v", again)
	}
	if v[1].Sent["passed"] < uint64(len(steps)-1) || v[1].Fault != "" {
		t.Errorf("%+v", v[1])
	}
	cancel()
	synctest.Wait()
	time.Sleep(2 * time.Second)
	if last := told[len(told)-1]; last.Fault != "" || len(told) != len(steps)+1 {
		t.Errorf("at the end: %+v", last)
	}
}
