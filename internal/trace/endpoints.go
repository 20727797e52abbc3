package trace

import (
	"fmt"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// maxListed bounds how many endpoints the steps name one by one.
const maxListed = 20

// listEndpoints adds steps about the endpoints: which are candidates, which are not, and why. weights is the
// sum of the candidates' weights if these decide, else 0.
func (e *explanation) listEndpoints(states []k8s.EndpointState, weights int) {
	in, out := 0, 0

	for i := range states {
		s := &states[i]
		why := s.Why
		if e.Route.Set == k8s.OnNode {
			why = s.WhyLocal
		}
		if why == "" {
			if in++; in <= maxListed {
				e.step("candidate: %s%s%s%s", named(s), onNode(s), weightText(s, weights), fallbackText(s))
			}
			continue
		}

		if out++; out <= maxListed {
			on := onNode(s)
			if strings.HasPrefix(why, "on ") {
				on = ""
			}
			e.step("not a candidate: %s%s: %s", named(s), on, why)
		}
	}

	if in > maxListed {
		e.step("and %d more candidates", in-maxListed)
	}
	if out > maxListed {
		e.step("and %d more that are not candidates", out-maxListed)
	}
}

// named returns an endpoint's address with its pod, if that is known.
func named(s *k8s.EndpointState) string {
	if s.Pod == "" {
		return s.Addr.String()
	}
	return s.Addr.String() + " (pod " + s.Pod + ")"
}

func onNode(s *k8s.EndpointState) string {
	switch {
	case s.Node == "":
		return ""
	case s.Local:
		return " on this node"
	}
	return " on " + s.Node
}

// weightText returns a candidate's weight and, if the weights decide, its share of new connections.
func weightText(s *k8s.EndpointState, weights int) string {
	switch {
	case weights > 0:
		return fmt.Sprintf(", weight %d (%.3g %%)", s.Weight, 100*float64(s.Weight)/float64(weights))
	case s.Weight != 1:
		return fmt.Sprintf(", weight %d", s.Weight)
	}
	return ""
}

// fallbackText returns why an endpoint that is not ready is in force.
func fallbackText(s *k8s.EndpointState) string {
	if s.Ready {
		return ""
	}
	return " (terminating, but still serving, and none is ready)"
}
