package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// WhyEmpty returns why no endpoint of a Service port can serve, in the words that all commands share. states
// are those of its endpoints (Tracker.EndpointStates).
func WhyEmpty(t *k8s.Tracker, name k8s.PortName, states []k8s.EndpointState) string {
	if len(states) > 0 {
		return "none of its endpoints can serve"
	}
	sum := t.SliceState(name)
	port := name.Port + "/" + string(name.Protocol)
	switch {
	case sum.Slices == 0:
		return fmt.Sprintf("the Service has no endpoints: no %s EndpointSlice names it", name.Family)
	case sum.Endpoints == 0:
		return "the Service has no endpoints: does its selector match any pod?"
	case !slices.Contains(sum.Ports, port):
		return fmt.Sprintf("the Service has no endpoints at this port: its EndpointSlices have ports %s, "+
			"not %s (names and protocols must agree)",
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

// OddPort returns a note if EndpointSlices have another port than the Service's numeric targetPort; "": none
// has. No proxy uses targetPort, only the EndpointSlice controller does.
func OddPort(t *k8s.Tracker, name k8s.PortName, states []k8s.EndpointState) string {
	target := t.TargetPort(name)
	if target == 0 {
		return ""
	}
	odd := slices.DeleteFunc(slices.Clone(states), func(s k8s.EndpointState) bool {
		return s.Addr.Port() == target
	})
	if len(odd) == 0 {
		return ""
	}
	return fmt.Sprintf("the Service's targetPort is %d, but connections go to %s, which counts",
		target, slicePorts(name.Namespace, odd))
}

// maxSlicePorts bounds how many ports are named.
const maxSlicePorts = 3

// slicePorts names the ports of endpoints and, for each, an EndpointSlice that it comes from.
func slicePorts(namespace string, states []k8s.EndpointState) string {
	seen := map[uint16]bool{}
	var list []string
	for i := range states {
		port := states[i].Addr.Port()
		if seen[port] {
			continue
		}
		seen[port] = true
		if len(seen) <= maxSlicePorts {
			list = append(list, fmt.Sprintf("port %d of EndpointSlice %s/%s",
				port, namespace, states[i].Slice))
		}
	}
	if more := len(seen) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("%d more ports", more))
	}
	return strings.Join(list, ", ")
}
