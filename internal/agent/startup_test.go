package agent

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// listed is a source that tells of its lists.
type listed struct{}

func (listed) Run(context.Context, k8s.Sink) error { return nil }

func (listed) FirstLists() []apiserver.ListStats {
	return []apiserver.ListStats{{Kind: k8s.KindService, Objects: 7, Bytes: 700, Took: 5 * time.Millisecond}}
}

// Each step of the start is noted when it is first come to, and the end of it is said once.
func TestBeginning(t *testing.T) {
	var log bytes.Buffer
	a := &Agent{source: listed{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	if s := a.startStatus(); s.Chosen != 0 || s.InStep != 0 {
		t.Errorf("before the start: %+v", s)
	}
	b := &a.startup
	for _, step := range []*time.Duration{&b.chosen, &b.synced, &b.model} {
		if !b.record(step) || b.record(step) {
			t.Error("a step is noted twice, or not at all")
		}
		time.Sleep(2 * time.Millisecond)
	}
	settled := make(chan bool, 2)
	a.settling.settle = func() { settled <- true }
	a.settling.in(0) // a start that takes long
	<-settled
	a.settling.in(time.Hour)
	a.startedUp()
	<-settled
	s := a.startStatus()
	a.startedUp()
	if !(0 < s.Chosen && s.Chosen < s.Synced && s.Synced < s.Model && s.Model < s.InStep) {
		t.Errorf("the steps are not in order: %+v", s)
	}
	if len(s.Lists) != 1 || s.Lists[0].Objects != 7 || s.Lists[0].Bytes != 700 || math.Abs(s.Lists[0].Milli-s.Chosen-5) > 1e-6 {
		t.Errorf("lists: %+v", s.Lists)
	}
	if n := strings.Count(log.String(), "programmed for the first time"); n != 1 {
		t.Errorf("the end of the start is said %d times: %s", n, log.String())
	}
	if again := a.startStatus(); again.InStep != s.InStep {
		t.Errorf("the start ends again: %v, %v", s.InStep, again.InStep)
	}
}
