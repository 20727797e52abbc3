package dataplane

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// CanaryPeriod is the time from a canary to the next. A fault is claimed when two in a row have met it, so
// that one packet that was lost under load is none: within two periods and the wait for the second.
const CanaryPeriod = 5 * time.Second

// CanaryResult is what became of one canary: a packet of nkp's own to a Service of nkp's own. Of Lost and
// Unknown one is set at most; neither is if it passed.
type CanaryResult struct {
	// Passed are the parts of the path that it passed, in order.
	Passed []string
	// Lost names the part of the path that did not let it pass. Full says that the reason is a full conntrack
	// table, which is no fault of the path.
	Lost string
	Full bool
	// Partial says that other packets may pass, so that it is no reason for /healthz.
	Partial bool
	// Unknown is why nothing can be said: no canary was sent, or nkp may have missed it.
	Unknown string
}

// CanaryVerdict is what a plane's canaries of one family have shown. It claims nothing of parts of the path
// that are not in Passed or Fault.
type CanaryVerdict struct {
	Plane  string `json:"plane"`
	Family string `json:"family"`
	// Passed are the parts of the path that the latest canary passed, at PassedAt; nil: none has yet.
	Passed   []string   `json:"passed"`
	PassedAt *time.Time `json:"passedAt"`
	// Fault names the part of the path that canaries have not passed since FaultSince; "": there is none.
	// Full says that a conntrack table is full.
	Fault      string     `json:"fault,omitempty"`
	FaultSince *time.Time `json:"faultSince,omitempty"`
	Full       bool       `json:"full,omitempty"`
	// Partial says that the fault may be of packets to the node itself alone.
	Partial bool `json:"partial,omitempty"`
	// Unknown is why the latest canary shows nothing; "": it does.
	Unknown string `json:"unknown,omitempty"`

	// Sent counts canaries since the start by what became of them: passed, lost, full (they met a full
	// conntrack table), or unknown.
	Sent map[string]uint64 `json:"sent"`
}

// Warning returns the fault in a line for status; "": there is none.
func (v *CanaryVerdict) Warning() string {
	if v.Fault == "" {
		return ""
	}
	return "data path of " + v.Plane + ", " + v.Family + ": since " +
		v.FaultSince.UTC().Format(time.RFC3339) + " no packet of nkp's own passes: " + v.Fault
}

// Canary sends canaries and keeps the verdicts. Make it with NewCanary and run it once with Run; Verdicts may
// be called from any goroutine.
type Canary struct {
	log      *slog.Logger
	tell     func(CanaryVerdict) // Hooks.DataPath
	families []k8s.Family
	// send sends the canary of a family and waits for what becomes of it. again: the one before was lost, so
	// that this one may cost more to find out where.
	send func(ctx context.Context, f k8s.Family, again bool) CanaryResult

	mu       sync.Mutex // protects the fields below
	verdicts []CanaryVerdict
	lost     []int // by family: how many in a row
}

// NewCanary returns a Canary of a plane.
func NewCanary(
	plane string, log *slog.Logger, tell func(CanaryVerdict), families []k8s.Family,
	send func(ctx context.Context, f k8s.Family, again bool) CanaryResult,
) *Canary {
	c := &Canary{log: log, tell: tell, families: families, send: send, lost: make([]int, len(families))}
	for _, f := range families {
		c.verdicts = append(c.verdicts, CanaryVerdict{
			Plane: plane, Family: f.String(), Passed: []string{},
			Sent: map[string]uint64{"passed": 0, "lost": 0, "full": 0, "unknown": 0},
		})
	}
	return c
}

// Run sends canaries until the context ends.
func (c *Canary) Run(ctx context.Context) {
	tick := time.NewTicker(CanaryPeriod)
	defer tick.Stop()
	defer func() {
		for _, v := range c.Verdicts() {
			c.tell(CanaryVerdict{Plane: v.Plane, Family: v.Family})
		}
	}()
	for {
		var all sync.WaitGroup
		for i, f := range c.families {
			all.Go(func() { // send ends soon after ctx
				r := c.send(ctx, f, c.lost[i] > 0)
				if ctx.Err() == nil {
					c.note(i, r, time.Now())
				}
			})
		}
		all.Wait()

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// note takes the result of a canary of a family.
func (c *Canary) note(i int, r CanaryResult, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &c.verdicts[i]
	v.Unknown = r.Unknown
	defer func() { c.tell(*v) }()

	switch {
	case r.Unknown != "": // a fault that was seen stays until a canary passes
		v.Sent["unknown"]++
		return
	case r.Lost == "":
		v.Sent["passed"]++
		if v.Fault != "" {
			c.log.Info("packets of nkp's own pass the data path again", "plane", v.Plane, "family", v.Family)
		}
		c.lost[i], v.Fault, v.FaultSince, v.Full, v.Partial = 0, "", nil, false, false
		v.Passed, v.PassedAt = r.Passed, &now
		return
	case r.Full:
		v.Sent["full"]++
	default:
		v.Sent["lost"]++
	}

	if c.lost[i]++; c.lost[i] < 2 {
		return
	}
	if v.Fault == "" {
		v.FaultSince = &now
	}
	if v.Fault != r.Lost {
		c.log.Error("no packet of nkp's own passes the data path",
			"plane", v.Plane, "family", v.Family, "fault", r.Lost)
	}
	v.Fault, v.Full, v.Partial, v.Passed = r.Lost, r.Full, r.Partial, append([]string{}, r.Passed...)
}

// Verdicts returns a verdict for each family. Its lists must not be changed.
func (c *Canary) Verdicts() []CanaryVerdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.verdicts)
	for i := range list {
		list[i].Sent = maps.Clone(list[i].Sent)
	}
	return list
}
