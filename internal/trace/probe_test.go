package trace

import (
	"strings"
	"testing"
)

// A probe is a fault if it ended otherwise than the Services say, and its last line says what was seen.
func TestJudge(t *testing.T) {
	deliver := &Result{Verdict: Deliver, Endpoints: []string{"10.0.0.12:8080"}, Packet: Packet{To: "40.0.0.1:80"}}
	reject, drop := &Result{Verdict: Reject, Endpoints: []string{}}, &Result{Verdict: Drop, Endpoints: []string{}}
	const seen = "by port 11 to MAC 02:00:00:00:00:11"
	for _, tc := range []struct {
		p       Probe
		r       *Result
		fault   bool
		summary string
	}{
		{Probe{Outcome: Answered, By: "10.0.0.12:8080", Milliseconds: 1.234}, deliver, false, "answered by 10.0.0.12:8080 after 1.2 ms"},
		{Probe{Outcome: Answered, Milliseconds: 1}, deliver, false, "answered by an endpoint that is not known after 1.0 ms"},
		{Probe{Outcome: Answered, By: "10.0.0.9:8080"}, deliver, true, "answered by 10.0.0.9:8080 after 0.0 ms, which is no candidate (10.0.0.12:8080)"},
		{Probe{Outcome: Answered, By: "10.0.0.9:8080"}, reject, true, "answered by 10.0.0.9:8080 after 0.0 ms, although the Services say reject"},
		{Probe{Outcome: Refused, By: "10.0.0.12:8080"}, deliver, true, "refused by 10.0.0.12:8080 after 0.0 ms"},
		{Probe{Outcome: Refused, By: ByNkp}, deliver, true, "refused by nkp after 0.0 ms"},
		{Probe{Outcome: Refused, By: ByNkp}, reject, false, "refused by nkp after 0.0 ms"},
		{Probe{Outcome: Refused, OnWay: "no route to host"}, deliver, true, "refused on its way (no route to host) after 0.0 ms"},
		{Probe{Outcome: Refused, By: "10.0.0.12:8080"}, drop, true, "refused by 10.0.0.12:8080 after 0.0 ms"},
		{Probe{Outcome: Refused, By: "10.0.0.12:8080", Endpoint: "10.0.0.12:8080"}, deliver, true,
			"refused by 10.0.0.12:8080 after 0.0 ms: nothing listens at that address and port, or a filter of the endpoint's rejects the packet"},
		{Probe{Outcome: Unanswered, Endpoint: "10.0.0.12:8080", LastSeen: seen, Cause: "because"}, deliver, true,
			"no answer within 1 s; last seen leaving " + seen + "; because"},
		{Probe{Outcome: Unanswered, Endpoint: "10.0.0.12:8080", LastSeen: seen}, deliver, true, "no answer within 1 s; last seen leaving " + seen},
		{Probe{Outcome: Unanswered, Endpoint: "10.0.0.12:8080"}, deliver, true, "no answer within 1 s; translated to 10.0.0.12:8080, and not seen after that"},
		{Probe{Outcome: Unanswered, NoEntry: true}, deliver, true, "no answer within 1 s; conntrack has no entry of it: it was lost before an endpoint was chosen"},
		{Probe{Outcome: Unanswered}, drop, false, "no answer within 1 s"},
		{Probe{Outcome: Unanswered}, reject, true, "no answer within 1 s"},
		{Probe{Outcome: Unknown, Endpoint: "10.0.0.12:53", LastSeen: seen}, deliver, false, "sent to 10.0.0.12:53 " + seen + "; no answer proves nothing"},
		{Probe{Outcome: Unknown}, drop, false, "sent to ; no answer proves nothing"},
		{Probe{Outcome: Unknown, NoEntry: true}, deliver, true, "sent to 40.0.0.1:80; no answer proves nothing; conntrack has no entry of it: it was lost before an endpoint was chosen"},
	} {
		p := tc.p
		if p.Judge(tc.r); p.Fault != tc.fault || p.Summary != tc.summary {
			t.Errorf("%+v of %s: fault %t, %q; want %t, %q", tc.p, tc.r.Verdict, p.Fault, p.Summary, tc.fault, tc.summary)
		}
		if r := (&Result{Probe: &p}); r.Agrees() == tc.fault {
			t.Errorf("%+v: agrees %t", tc.p, r.Agrees())
		}
	}
}

// As text, a probe comes after the verdict: what was done, then what became of the packet.
func TestProbeText(t *testing.T) {
	p := &Probe{Outcome: Answered, By: "10.0.0.12:8080", Milliseconds: 1.2}
	p.Step("sent at port pod-1 (3)")
	r := &Result{Verdict: Deliver, Endpoints: []string{"10.0.0.12:8080"}, Steps: []string{"from 10.0.0.5: a pod"}, Probe: p}
	p.Judge(r)
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = " 1. from 10.0.0.5: a pod\n\nverdict: deliver\n\nprobe:\n 1. sent at port pod-1 (3)\n\nanswered by 10.0.0.12:8080 after 1.2 ms\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
