package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Verdict is what happens to a packet.
type Verdict string

// The verdicts; the texts are part of the command-line contract (trace -o json).
const (
	Deliver   Verdict = "deliver"   // to an endpoint
	Reject    Verdict = "reject"    // refused with an answer: TCP RST or port unreachable
	Drop      Verdict = "drop"      // without an answer
	Untouched Verdict = "untouched" // nkp has nothing to do with it

	// Only Live has these.
	Mixed Verdict = "mixed" // delivered, or dropped or refused, depending on the endpoint
	// Uncertain: it leaves the switch, but not as nkp wants. Whether it arrives, or its answer does, is not
	// known.
	Uncertain Verdict = "uncertain"
)

// Masquerade says whether the client's address is replaced with the node's.
type Masquerade string

// The kinds; the texts are part of the command-line contract.
const (
	Always  Masquerade = "always"
	Never   Masquerade = "never"
	Hairpin Masquerade = "hairpin" // only if the client itself is picked as the endpoint
)

// Result is the explanation of a packet. Its JSON form is part of the command-line contract.
type Result struct {
	Verdict    Verdict          `json:"verdict"`
	Service    string           `json:"service"`   // namespace/name:port; "" if no Service port is concerned
	Frontend   k8s.FrontendType `json:"frontend"`  // "" likewise
	Endpoints  []string         `json:"endpoints"` // all candidates, sorted by text
	Masquerade Masquerade       `json:"masquerade"`
	Steps      []string         `json:"steps"`
	// Packet is what was explained, with the addresses that names stand for.
	Packet Packet `json:"packet"`
	Live   *Live  `json:"live,omitempty"` // comparison with the installed rules; nil: not compared

	Reply *Reply `json:"reply,omitempty"` // what happens to the answer; nil: not asked for
	// Follow is what became of packets while they were followed; nil: not asked for.
	Follow *Follow `json:"follow,omitempty"`
	Probe  *Probe  `json:"probe,omitempty"` // what became of a packet that was sent; nil: not asked for

	// Port is Service in full, the zero PortName if there is none; Source and Route decided the verdict.
	Port   k8s.PortName   `json:"-"`
	Source k8s.ClientKind `json:"-"`
	Route  k8s.Route      `json:"-"`
	// Unserved is set if no data plane serves the node's own packet: it does not pass through anything that
	// nkp installs.
	Unserved bool `json:"-"`
	// Place is where the client is.
	Place k8s.Place `json:"-"`
	// Chosen returns where packets from a client's port are sent, if that depends on nothing else; nil: to
	// any of Endpoints.
	Chosen func(client uint16) netip.AddrPort `json:"-"`
	// Relayed is set if the packet goes to another node to be translated there.
	Relayed bool `json:"-"`
	// Userspace is set if no rule or flow is concerned, but nkp's own listener at [::1], and Unheard is why
	// there is none although there should be.
	Userspace bool   `json:"-"`
	Unheard   string `json:"-"`
}

// Packet is a Question in its JSON form.
type Packet struct {
	From     string       `json:"from"` // IP, or IP:PORT
	To       string       `json:"to"`   // IP:PORT
	Protocol k8s.Protocol `json:"protocol"`
}

// PodHere reports whether the client is a pod that is not known to run on another node.
func (r *Result) PodHere(node *k8s.Node) bool {
	return r.Source == k8s.Pod && (r.Place.Node == "" || r.Place.Node == node.Name)
}

// Live compares the installed rules with the model.
type Live struct {
	Agrees bool `json:"agrees"`
	// Verdict is what the installed rules do with the packet.
	Verdict Verdict `json:"verdict"`
	// Differences list where the two do not agree, and the Doubts.
	Differences []string `json:"differences"`
	// Doubts list what may keep the packet or its answer from arriving, whatever rules are installed, such as
	// a port that is down.
	Doubts []string `json:"doubts"`
	// Unknown lists what speaks neither for nor against delivery, such as datagrams without an answer.
	Unknown []string `json:"unknown"`
	// Steps are the packet's path through the installed rules.
	Steps []string `json:"steps"`
}

// Differ records that the installed rules do not agree with the model.
func (l *Live) Differ(format string, args ...any) {
	l.Agrees = false
	l.Differences = append(l.Differences, fmt.Sprintf(format, args...))
}

// Doubt records what may keep the packet or its answer from arriving, whatever rules are installed.
func (l *Live) Doubt(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(l.Doubts, text) {
		l.Doubts = append(l.Doubts, text)
		l.Differ("%s", text)
	}
	if l.Verdict == Deliver {
		l.Verdict = Uncertain
	}
}

// Step records a step of the packet's path through the installed rules.
func (l *Live) Step(format string, args ...any) {
	l.Steps = append(l.Steps, fmt.Sprintf(format, args...))
}

// NewLive returns a Live without anything in it: as long as nothing differs, it agrees.
func NewLive() *Live {
	none := func() []string { return []string{} }
	return &Live{Agrees: true, Differences: none(), Doubts: none(), Unknown: none(), Steps: none()}
}

// Doubt adds to Live.Doubts, of the packet and of its answer, as far as they were compared.
func (r *Result) Doubt(text string) {
	r.Live.Doubt("%s", text)
	if r.Reply != nil && r.Reply.Live != nil {
		r.Reply.Live.Doubt("%s", text)
	}
}

// WriteJSON prints the result as `trace -o json` does.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteText prints the result for people: the steps, then the verdict in one line.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	writeVerdict(&b, r.Steps, r.Live, "verdict", r.Verdict)
	if y := r.Reply; y != nil {
		b.WriteString("\nthe answer:\n")
		writeVerdict(&b, y.Steps, y.Live, "verdict on the answer", y.Verdict)
	}
	if p := r.Probe; p != nil {
		b.WriteString("\nprobe:\n")
		writeSteps(&b, p.Steps)
		b.WriteString("\n" + p.Summary + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Agrees reports whether what is installed, and a packet that was sent, agree with the model, as far as that
// was asked for.
func (r *Result) Agrees() bool {
	return (r.Probe == nil || !r.Probe.Fault) && (r.Live == nil || r.Live.Agrees) &&
		(r.Reply == nil || r.Reply.Live == nil || r.Reply.Live.Agrees)
}

func writeSteps(b *strings.Builder, steps []string) {
	for i, s := range steps {
		fmt.Fprintf(b, "%2d. %s\n", i+1, s)
	}
}

// writeVerdict writes numbered steps, by the model and as installed, and the verdict.
func writeVerdict(b *strings.Builder, steps []string, live *Live, what string, verdict Verdict) {
	writeSteps(b, steps)
	if live != nil {
		b.WriteString("\ninstalled:\n")
		writeSteps(b, live.Steps)
	}

	if live != nil && !live.Agrees && live.Verdict != verdict {
		fmt.Fprintf(b, "\n%s: %s (by the Services alone: %s)\n", what, live.Verdict, verdict)
	} else {
		fmt.Fprintf(b, "\n%s: %s\n", what, verdict)
	}
	if live == nil {
		return
	}

	if live.Agrees {
		b.WriteString("what is installed agrees\n")
	}
	for _, d := range live.Differences {
		if slices.Contains(live.Doubts, d) {
			continue
		}
		fmt.Fprintf(b, "what is installed does not agree: %s\n", d)
	}
	for _, d := range live.Doubts {
		fmt.Fprintf(b, "not known to arrive: %s\n", d)
	}
	for _, u := range live.Unknown {
		fmt.Fprintf(b, "not known: %s\n", u)
	}
}
