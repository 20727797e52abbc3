package k8s

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The annotation's values, and what a warning says of those that have no effect.
func TestRemovedEndpointsAnnotation(t *testing.T) {
	for _, tc := range []struct {
		text, want, warning string
		change              func(*v1.Service, *Options)
	}{
		{"keep", "keep", "", nil},
		{" close ", "close", "", nil},
		{"drain=30s", "drain=30s", "", nil},
		{"drain=24h", "drain=24h0m0s", "", nil},
		{"", "keep", "is neither keep, close nor drain=DURATION", nil},
		{"Close", "keep", `"Close" is neither keep`, nil},
		{"drain", "keep", "is neither keep", nil},
		{"drain=30", "keep", "is not drain=DURATION", nil},
		{"drain=-1s", "keep", "is not drain=DURATION", nil},
		{"drain=0s", "keep", "is not drain=DURATION", nil},
		{"drain=25h", "keep", "at most 24h0m0s", nil},
		{"close", "keep", "has no effect: it cannot", func(_ *v1.Service, o *Options) { o.NotClosing = "it cannot" }},
		{"close", "keep", "has no effect with " + AnnotationConsistent, func(s *v1.Service, _ *Options) {
			s.Annotations[AnnotationConsistent], s.Spec.SessionAffinity = "true", v1.ServiceAffinityNone
			s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
		}},
		{"close", "", "", func(s *v1.Service, _ *Options) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }},
	} {
		s, opts := webService(), Options{NodeName: "n1"}
		s.Annotations = map[string]string{AnnotationRemovedEndpoints: tc.text}
		if tc.change != nil {
			tc.change(s, &opts)
		}
		tracker := NewTracker(opts)
		tracker.SetService(s, Origin{})
		m, _ := tracker.Flush()
		warnings := fmt.Sprint(m.Warnings)
		said := strings.Contains(warnings, AnnotationRemovedEndpoints) && strings.Contains(warnings, tc.warning) &&
			strings.Contains(warnings, "Service default/web")
		if said != (tc.warning != "") {
			t.Errorf("%q: warnings %s, want %q", tc.text, warnings, tc.warning)
		}
		for _, sp := range m.Ports {
			if got := sp.Removed.String(); got != tc.want && !(tc.want == "" && sp.Removed == nil) {
				t.Errorf("%q: %s, want %s", tc.text, got, tc.want)
			}
		}
	}
}

// drains is a Service that drains, with one port.
type drains struct {
	*Tracker
	t    *testing.T
	at   time.Time
	last *ServicePort
}

func newDrains(t *testing.T, policy string) *drains {
	s := webService()
	s.Annotations = map[string]string{AnnotationRemovedEndpoints: policy}
	d := &drains{Tracker: NewTracker(Options{NodeName: "n1"}), t: t, at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	d.SetService(s, Origin{})
	return d
}

// list replaces the endpoints.
func (d *drains) list(hosts ...int) {
	sl := webSlice()
	sl.Endpoints = nil
	for _, h := range hosts {
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 0, byte(h >> 8), byte(h)}).String()}})
	}
	d.SetEndpointSlice(sl, Origin{})
}

// after lets time pass, and checks the hosts with which connections may stay, and when to look again.
func (d *drains) after(pass time.Duration, want string, due time.Duration) {
	d.t.Helper()
	d.at = d.at.Add(pass)
	d.Advance(d.at)
	m, _ := d.Flush()
	for _, sp := range m.Ports {
		d.last = sp
	}
	var stay []string
	for _, e := range d.last.Serving {
		stay = append(stay, fmt.Sprint(e.Addr().As4()[3]))
	}
	got := strings.Join(stay, " ")
	if d.last.Removed.Unknown {
		got += " and unknown ones"
	}
	wait := time.Duration(0)
	if at := d.Due(); !at.IsZero() {
		wait = at.Sub(d.at)
	}
	if got != want || wait != due {
		d.t.Errorf("at %s: %q stay, due in %v; want %q, %v", d.at.Format("04:05"), got, wait, want, due)
	}
}

// Connections to a removed endpoint stay for the time of the policy, and those to unknown endpoints as long after the start.
func TestDrain(t *testing.T) {
	d := newDrains(t, "drain=30s")
	d.list(1, 2, 3)
	d.after(0, "1 2 3 and unknown ones", 30*time.Second)
	d.list(1, 3)
	d.after(10*time.Second, "1 2 3 and unknown ones", 20*time.Second)
	d.list(1)
	d.after(10*time.Second, "1 2 3 and unknown ones", 10*time.Second)
	d.after(10*time.Second, "1 2 3", 10*time.Second)
	d.after(10*time.Second, "1 3", 10*time.Second)
	d.list(1, 3)
	d.after(5*time.Second, "1 3", 0) // it came back
	d.list(1)
	d.after(0, "1 3", 30*time.Second)
	d.after(31*time.Second, "1", 0)
	d.list()
	d.after(0, "1", 30*time.Second)
	if d.Draining() != 1 {
		t.Errorf("%d endpoints drain, want 1", d.Draining())
	}
	d.after(30*time.Second, "", 0)
	d.DeleteService("default", "web")
	if _, changes := d.Flush(); len(changes.Ports) != 1 || len(d.drains) != 0 {
		t.Errorf("%v, %d drain when the Service went", changes.Ports, len(d.drains))
	}
}

// An endpoint that moves from one EndpointSlice to another is not taken for removed, and one that is not ready neither.
func TestCloseAfterAMove(t *testing.T) {
	d := newDrains(t, "close")
	d.list(1, 2)
	d.after(0, "1 2 and unknown ones", time.Second)
	d.after(time.Second, "1 2", 0)
	d.list(1)
	d.after(0, "1 2", time.Second)
	d.list(1, 2)
	d.after(500*time.Millisecond, "1 2", 0)
	no, sl := false, webSlice()
	sl.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &no}}}
	d.SetEndpointSlice(sl, Origin{})
	d.after(0, "1 2", time.Second)
	d.after(time.Second, "1", 0)
}

// A Service that gets the annotation while nkp runs keeps the connections to endpoints that left before for as long as after a
// removal, whatever policy it had.
func TestDrainBegins(t *testing.T) {
	d := newDrains(t, "keep")
	annotate := func(policy string) {
		s := webService()
		s.Annotations = map[string]string{AnnotationRemovedEndpoints: policy}
		d.SetService(s, Origin{})
	}
	d.list(1, 2)
	d.Flush()
	d.list(1)
	d.Flush()
	annotate("drain=30s")
	d.after(0, "1 and unknown ones", 30*time.Second)
	annotate("close")
	d.after(time.Second, "1", 0)
	annotate("keep")
	d.Flush()
	annotate("drain=30s")
	d.after(0, "1 and unknown ones", 30*time.Second)
	d.list()
	d.after(10*time.Second, "1 and unknown ones", 20*time.Second)
	d.after(20*time.Second, "1", 10*time.Second)
	d.after(10*time.Second, "", 0)
}

// A Service that replaces its endpoints again and again keeps a bounded number of those that are gone.
func TestDrainIsBounded(t *testing.T) {
	d := newDrains(t, "drain=24h")
	for round := range 4 {
		var hosts []int
		for i := range 2000 {
			hosts = append(hosts, round*2000+i)
		}
		d.list(hosts...)
		d.at = d.at.Add(time.Second)
		d.Advance(d.at)
		if m, _ := d.Flush(); d.Draining() > maxDraining || (round == 3) != strings.Contains(fmt.Sprint(m.Warnings), "too many endpoints were removed") {
			t.Errorf("round %d: %d drain, warnings %v", round, d.Draining(), m.Warnings)
		}
	}
}
