package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/k8s"
)

// Agent keeps the data plane of one node in step with one source. Make it with New, run it once with Run.
type Agent struct {
	set     Settings
	log     *slog.Logger
	reason  string // why this mode
	source  k8s.Source
	kind    string // what the source is, for status
	plane   *bridge.Plane
	started time.Time

	box  *mailbox
	asks chan func() // questions of the socket, answered on the loop

	// What follows belongs to the loop alone.
	tracker  *k8s.Tracker
	model    *k8s.Model
	synced   bool // the source has told all it knows
	handed   bool // the data plane has got it
	problems k8s.Problems
}

// New gives an Agent for a data plane. reason says, for status, why nkp runs in this mode.
func New(set Settings, reason string, source k8s.Source, kind string, plane *bridge.Plane, log *slog.Logger) *Agent {
	return &Agent{
		set: set, log: log, reason: reason, source: source, kind: kind, plane: plane, started: time.Now(),
		box:     newMailbox(),
		asks:    make(chan func()),
		tracker: k8s.NewTracker(set.TrackerOptions()),
		model:   &k8s.Model{},
	}
}

// Run works until the context ends, and returns nil then; what is installed stays. Any other return is an error that no
// retry can mend.
func (a *Agent) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.source.Run(ctx, a.box) })
	g.Go(func() error { return a.plane.Run(ctx) })
	g.Go(func() error { return a.loop(ctx) })
	if a.set.Socket != "" {
		g.Go(func() error { return a.serve(ctx) })
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// loop owns the agent's state. It ends with the context.
func (a *Agent) loop(ctx context.Context) error {
	ips, err := a.set.LocalAddresses()
	if err != nil {
		a.log.Warn("cannot list the node's addresses", "error", err)
	}
	a.tracker.SetLocalAddresses(ips)
	addresses := a.set.watchAddresses(ctx, ips, a.log)
	patience := time.NewTimer(podCIDRPatience)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			if a.waitsForPodCIDR() {
				return fmt.Errorf("waited %v: node %s has no spec.podCIDRs, which --detect-local-mode NodeCIDR needs", podCIDRPatience, a.set.NodeName)
			}
		case <-a.box.arrived:
			a.takeChanges()
		case ips := <-addresses:
			a.tracker.SetLocalAddresses(ips)
			if a.synced {
				a.flush()
			}
		case f := <-a.asks:
			f()
		}
	}
}

// takeChanges brings the model, and then the data plane, in step with the source.
func (a *Agent) takeChanges() {
	changes, synced, problems := a.box.take()
	a.reportProblems(problems)
	a.tracker.Apply(changes)
	if !synced {
		return
	}
	if !a.synced {
		a.log.Info("source has synced", "source", a.kind)
		a.synced = true
	}
	a.flush()
}

// podCIDRPatience is how long --detect-local-mode NodeCIDR waits for somebody to give the node a range, as in kube-proxy.
const podCIDRPatience = 5 * time.Minute

// flush hands what is new in the model to the data plane. The first time it hands over everything, and only once it is
// known who is a pod: until then what is installed stays.
func (a *Agent) flush() {
	if a.waitsForPodCIDR() {
		a.log.Info("waiting for the node's spec.podCIDRs (--detect-local-mode NodeCIDR)", "node", a.set.NodeName, "atMost", podCIDRPatience)
		return
	}
	model, changes := a.tracker.Flush()
	a.model, a.handed = model, true
	a.plane.Update(model, changes)
}

func (a *Agent) waitsForPodCIDR() bool {
	return a.set.DetectLocal.Mode == k8s.DetectByNodeCIDR && !a.handed && len(a.tracker.Node().PodCIDRs) == 0
}

func (a *Agent) reportProblems(p k8s.Problems) {
	for _, e := range p.Errors {
		if !slices.Contains(a.problems.Errors, e) {
			a.log.Error("problem at the source; its last good state stays in force", "problem", e.String())
		}
	}
	if len(a.problems.Errors) > 0 && len(p.Errors) == 0 {
		a.log.Info("the source is in order again", "source", a.kind)
	}
	for _, w := range p.Warnings {
		if !slices.Contains(a.problems.Warnings, w) {
			a.log.Warn(w.String())
		}
	}
	a.problems = p
}

// ask runs f on the loop and waits for it.
func (a *Agent) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case a.asks <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return fmt.Errorf("the agent is busy: %w", ctx.Err())
	}
	<-done
	return nil
}
