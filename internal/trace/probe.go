package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ProbeSeconds is how long a probe waits for an answer.
const ProbeSeconds = 1

// Probe is what became of a packet that nkp sent.
type Probe struct {
	// Outcome is answered, refused, unanswered, or unknown: no answer of a protocol whose silence proves
	// nothing.
	Outcome Outcome `json:"outcome"`
	// By is who answered or refused: an address and port, an address (of a router), "nkp", or "" if it is not
	// known.
	By string `json:"by"`
	// Endpoint is where conntrack has the connection translated to; "": it had no entry.
	Endpoint     string   `json:"endpoint"`
	Milliseconds float64  `json:"milliseconds"` // until the answer; 0: there was none
	Fault        bool     `json:"fault"`        // it should have ended otherwise
	Summary      string   `json:"summary"`
	Steps        []string `json:"steps"`

	// OnWay is what the kernel says of a packet that came to nobody who could answer it; "": nothing.
	OnWay string `json:"-"`
	// LastSeen is where the packet left, if it is known: "by port 11 to MAC 02:…". NoEntry is set if the data
	// plane should have an entry in conntrack for the packet and has none.
	LastSeen string `json:"-"`
	NoEntry  bool   `json:"-"`
	// Cause is what else is known of why there was no answer; "": nothing.
	Cause string `json:"-"`
}

// ByNkp is Probe.By of a packet that nkp itself refused.
const ByNkp = "nkp"

// Step records what was done or seen.
func (p *Probe) Step(format string, args ...any) {
	p.Steps = append(p.Steps, fmt.Sprintf(format, args...))
}

// Judge sets Fault and Summary: whether the packet ended as r says.
func (p *Probe) Judge(r *Result) {
	after := fmt.Sprintf("after %.1f ms", p.Milliseconds)
	by := p.By
	if by == "" {
		by = "an endpoint that is not known"
	}

	switch p.Outcome {
	case Answered:
		p.Summary = fmt.Sprintf("answered by %s %s", by, after)
		at, err := netip.ParseAddrPort(p.By)
		switch {
		case r.Verdict != Deliver:
			p.Fault = true
			p.Summary += ", although the Services say " + string(r.Verdict)
		case err == nil && !slices.Contains(r.Endpoints, at.String()):
			p.Fault = true
			candidates := r.Endpoints[:min(len(r.Endpoints), 10)]
			p.Summary += ", which is no candidate (" + strings.Join(candidates, ", ") + ")"
		}
	case Refused:
		if p.Summary = fmt.Sprintf("refused by %s %s", by, after); p.OnWay != "" && p.By == "" {
			p.Summary = fmt.Sprintf("refused on its way (%s) %s", p.OnWay, after)
		}
		if p.By != "" && p.By == p.Endpoint {
			p.Summary += ": nothing listens at that address and port, or a filter of the endpoint's " +
				"rejects the packet"
		}
		p.Fault = r.Verdict != Reject || p.By != ByNkp
	case Unanswered:
		p.Summary = fmt.Sprintf("no answer within %d s", ProbeSeconds) + p.whereLost()
		p.Fault = r.Verdict != Drop
	default:
		to := p.Endpoint
		if to == "" {
			to = r.Packet.To
		}
		p.Summary = "sent to " + to
		if p.LastSeen != "" {
			p.Summary += " " + p.LastSeen
		}
		p.Fault = p.NoEntry && r.Verdict == Deliver || r.Verdict == Reject
		switch p.Summary += "; no answer proves nothing"; {
		case p.Fault:
			p.Summary += p.whereLost()
		case p.Cause != "":
			p.Summary += "; but " + p.Cause
		}
	}
}

// whereLost returns what is known of the way of a packet without an answer.
func (p *Probe) whereLost() string {
	switch {
	case p.LastSeen != "" && p.Cause != "":
		return "; last seen leaving " + p.LastSeen + "; " + p.Cause
	case p.LastSeen != "":
		return "; last seen leaving " + p.LastSeen
	case p.Endpoint != "":
		return "; translated to " + p.Endpoint + ", and not seen after that"
	case p.NoEntry:
		return "; conntrack has no entry of it: it was lost before an endpoint was chosen"
	}
	return ""
}
