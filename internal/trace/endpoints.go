package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// noEndpoints says why a Service port has no endpoints, ready or not.
func (e *explanation) noEndpoints(name k8s.PortName) string {
	sum := e.Tracker.SliceState(name)
	port := name.Port + "/" + string(name.Protocol)
	switch {
	case sum.Slices == 0:
		return fmt.Sprintf("the Service has no endpoints: no %s EndpointSlice names it", name.Family)
	case sum.Endpoints == 0:
		return "the Service has no endpoints: does its selector match any pod?"
	case !slices.Contains(sum.Ports, port):
		return fmt.Sprintf("the Service has no endpoints at this port: its EndpointSlices have ports %s, not %s (names and protocols must agree)",
			portList(sum.Ports), portList([]string{port}))
	}
	return "the Service has no endpoints"
}

// portList names ports of EndpointSlices; the unnamed one in words.
func portList(ports []string) string {
	list := make([]string, len(ports))
	for i, p := range ports {
		if strings.HasPrefix(p, "/") {
			p = "(unnamed)" + p
		}
		list[i] = p
	}
	return strings.Join(list, ", ")
}

// maxListed bounds how many endpoints the steps name one by one.
const maxListed = 20

// listEndpoints says which endpoints are candidates and which are not, and why.
func (e *explanation) listEndpoints(states []k8s.EndpointState) {
	in, out := 0, 0
	for i := range states {
		s := &states[i]
		why := s.Why
		if e.Policy == k8s.Local {
			why = s.WhyLocal
		}
		if why == "" {
			if in++; in <= maxListed {
				e.step("candidate: %s%s%s", s.Addr, onNode(s), fallbackText(s))
			}
			continue
		}
		if out++; out <= maxListed {
			on := onNode(s)
			if strings.HasPrefix(why, "on ") {
				on = ""
			}
			e.step("not a candidate: %s%s: %s", s.Addr, on, why)
		}
	}
	if in > maxListed {
		e.step("and %d more candidates", in-maxListed)
	}
	if out > maxListed {
		e.step("and %d more that are none", out-maxListed)
	}
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

// fallbackText says of an endpoint in force that is not ready why it is.
func fallbackText(s *k8s.EndpointState) string {
	if s.Ready {
		return ""
	}
	return " (terminating, but still serving, and none is ready)"
}
