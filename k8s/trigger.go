package k8s

import (
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Trigger is the cause of an endpoint change in a family: the time at which a pod or a Service changed, as
// the EndpointSlice controller records it. The network programming latency is the time from then until the
// change is in force.
type Trigger struct {
	Service ServiceName
	Family  Family
	At      time.Time
}

// triggerOf returns the trigger time in a slice's annotation; the zero Time if it is missing or invalid.
func triggerOf(o *discoveryv1.EndpointSlice) time.Time {
	text, ok := o.Annotations[v1.EndpointsLastChangeTriggerTime]
	if !ok {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// noteTrigger keeps the trigger of a slice that was added or replaced until the next Flush.
func (s *service) noteTrigger(o *discoveryv1.EndpointSlice, f Family) {
	if at := triggerOf(o); !at.IsZero() && f != 0 {
		s.triggers = append(s.triggers, Trigger{s.name, f, at})
	}
}

// takeTriggers returns those triggers of a Service that led to a change of one of its ports. Those that
// changed nothing here (an endpoint in another zone, say) are dropped: there is nothing to program.
func (s *service) takeTriggers(changed map[PortName]*ServicePort) (list []Trigger) {
	if len(s.triggers) == 0 {
		return nil
	}
	var touched [IPv6 + 1]bool
	for i := range s.ports {
		if _, ok := changed[s.ports[i].name]; ok {
			touched[s.ports[i].name.Family] = true
		}
	}
	for _, t := range s.triggers {
		if touched[t.Family] {
			list = append(list, t)
		}
	}
	s.triggers = nil
	return list
}
