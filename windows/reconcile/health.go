package reconcile

import (
	"fmt"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"
)

// health holds the load balancers that HNS does not report as healthy, and decides which of them to delete
// and create again.
//
// The meaning of a State is not documented, so replacing is tried on one load balancer first. The others are
// replaced only once that one is healthy. Each is replaced at most once between two full reads.
type health struct {
	sick     map[string]sickness // by id
	repaired map[plan.Frontend]bool
	probe    string // id of the load balancer that replaced the first sick one, until HNS has reported its State
	proved   bool   // a replaced load balancer became healthy
	useless  bool   // a replaced load balancer did not become healthy
	failed   bool   // the last read failed
}

// sickness is a State that is not healthy, and the number of consecutive reads that had such a State.
type sickness struct{ state, reads int }

// confirmed is how many reads in a row must agree, because a load balancer may be in a passing State while
// HNS programs it.
const confirmed = 2

// observe records the States that HNS reports.
func (h *health) observe(states map[string]int) {
	before := h.sick
	h.sick = map[string]sickness{}
	for id, state := range states {
		if state != 0 && state != hns.StateHealthy {
			h.sick[id] = sickness{state, before[id].reads + 1}
		}
	}
	if h.probe == "" {
		return
	}
	switch state, exists := states[h.probe]; {
	case !exists:
		h.probe = ""
	case state == hns.StateHealthy:
		h.probe, h.proved = "", true
	case h.sick[h.probe].reads >= confirmed:
		h.probe, h.useless = "", true
	}
}

// again lets load balancers that were replaced be replaced once more.
func (h *health) again() { h.repaired, h.useless = map[plan.Frontend]bool{}, false }

// repairs reports whether to replace a load balancer. Until one has become healthy by that, only one is
// replaced.
func (h *health) repairs(id string, f plan.Frontend) bool {
	return h.sick[id].reads >= confirmed && !h.repaired[f] && (h.proved || !h.useless && h.probe == "")
}

// replaced records that a load balancer was replaced because of its State.
func (h *health) replaced(f plan.Frontend, id string) {
	h.repaired[f] = true
	if !h.proved {
		h.probe = id
	}
}

// describe returns what is wrong with a load balancer; "": nothing.
func (h *health) describe(id string) string {
	s, ok := h.sick[id]
	if !ok {
		return ""
	}
	then := ". nkp deletes it and creates it again if that lasts"
	if h.useless {
		then = ", and creating it again does not help. Look into HNS (Get-HnsPolicyList)"
	}
	return fmt.Sprintf("HNS reports State %d for it, not %d (healthy): it may not forward%s",
		s.state, hns.StateHealthy, then)
}

// ObserveStates reads the State of every load balancer. An HNS that does not answer is reported in the log
// once, and changes nothing.
func (e *Engine) ObserveStates() {
	states, err := e.host.LoadBalancerStates()
	if err != nil {
		if !e.health.failed {
			e.log.Warn("cannot read the States of load balancers: nkp does not see whether HNS has programmed them",
				"error", err)
		}
		e.health.failed = true
		return
	}
	e.health.failed = false
	e.health.observe(states)
}

// Sick reports whether HNS reported a load balancer of nkp's as not healthy in the last read, and it is not
// known yet what follows.
func (e *Engine) Sick() bool {
	for id := range e.health.sick {
		if e.owned.LoadBalancers[id] && !e.health.useless {
			return true
		}
	}
	return false
}
