package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Sample is what the data plane shows, at one moment, of a client's connections to a frontend.
type Sample struct {
	Connections []Attempt `json:"connections"` // MaxSampled at most
	// Packets are those of the Service port, of all clients; nil: not counted.
	Packets *Packets `json:"packets"`
	// Note says why Packets is nil, or what is not in Connections; "": nothing.
	Note string `json:"note,omitempty"`
}

// MaxSampled bounds the connections in a Sample.
const MaxSampled = 1000

// Attempt is a connection as conntrack has it.
type Attempt struct {
	Client   netip.AddrPort `json:"client"`
	Endpoint netip.AddrPort `json:"endpoint"`
	State    string         `json:"state"`   // of TCP; "" for other protocols
	Outcome  Outcome        `json:"outcome"` // of TCP; Unknown for other protocols
}

// Outcome is what the endpoint did with a connection. The texts are part of the command-line contract.
type Outcome string

// The outcomes.
const (
	Answered   Outcome = "answered"
	Unanswered Outcome = "unanswered"
	Refused    Outcome = "refused"
	Gone       Outcome = "gone" // the entry went before an answer was seen: refused, or deleted
	Unknown    Outcome = "unknown"
)

// Packets are counters of a Service port.
type Packets struct {
	// First are the packets that matched the flows of its frontends: each SYN of a connection that has no
	// answer yet, and what is refused or dropped for want of an endpoint.
	First uint64 `json:"first"`
	// ToEndpoints and ToClients are packets of its connections.
	ToEndpoints uint64 `json:"toEndpoints"`
	ToClients   uint64 `json:"toClients"`
}

// Follow is what became of a client's packets while they were followed.
type Follow struct {
	Seconds     float64   `json:"seconds"`
	Connections []Attempt `json:"connections"` // that were opened, or changed, meanwhile; MaxSampled at most
	// Packets of all clients of the Service port that came meanwhile; nil: not counted.
	Packets *Packets `json:"packets"`
	Events  []string `json:"events"` // maxEvents at most
	Summary []string `json:"summary"`
}

// maxEvents bounds Follow.Events.
const maxEvents = 500

// Follower compares Samples. It is for one goroutine.
type Follower struct {
	Follow
	r      *Result
	before map[netip.AddrPort]Attempt // of the first Sample
	first  *Packets
	note   string
}

// NewFollower returns a Follower for the packet that r explains. start is the first Sample.
func NewFollower(r *Result, start *Sample) *Follower {
	f := &Follower{r: r, before: map[netip.AddrPort]Attempt{}, first: start.Packets, note: start.Note}
	f.Connections, f.Events, f.Summary = []Attempt{}, []string{}, []string{}
	for _, a := range start.Connections {
		f.before[a.Client] = a
	}
	return f
}

// Add compares a Sample with those before and returns what is new, a line each. at is the time since the
// first one, in seconds.
func (f *Follower) Add(at float64, s *Sample) (news []string) {
	f.Seconds, f.note = at, s.Note
	say := func(a *Attempt) {
		if line := fmt.Sprintf("%.1f s: %s", at, a); len(f.Events) < maxEvents {
			f.Events, news = append(f.Events, line), append(news, line)
		}
	}

	seen := map[netip.AddrPort]bool{}
	for _, a := range s.Connections {
		seen[a.Client] = true
		if old, ok := f.before[a.Client]; ok && !opened(&old, &a) {
			f.before[a.Client] = a
			continue
		}

		delete(f.before, a.Client)
		i := slices.IndexFunc(f.Connections, func(b Attempt) bool { return b.Client == a.Client })
		switch {
		case i < 0 && len(f.Connections) < MaxSampled:
			f.Connections = append(f.Connections, a)
			say(&a)
		case i >= 0:
			news := opened(&f.Connections[i], &a)
			f.Connections[i] = a
			if news {
				say(&a)
			}
		}
	}

	for i := range f.Connections {
		if len(s.Connections) == MaxSampled { // the sample may lack some
			break
		}
		if a := &f.Connections[i]; a.Outcome == Unanswered && !seen[a.Client] {
			a.Outcome = Gone
			say(a)
		}
	}

	if s.Packets != nil && f.first != nil {
		f.Packets = &Packets{s.Packets.First - min(f.first.First, s.Packets.First),
			s.Packets.ToEndpoints - min(f.first.ToEndpoints, s.Packets.ToEndpoints),
			s.Packets.ToClients - min(f.first.ToClients, s.Packets.ToClients)}
	}

	return news
}

// opened reports whether an entry that looked like old before shows another connection, or another outcome of
// the same one. A change of TCP's state alone, such as the end of a connection, is neither.
func opened(old, a *Attempt) bool {
	return old.Outcome != a.Outcome || old.Endpoint != a.Endpoint ||
		old.State == timeWait && a.State != timeWait
}

const timeWait = "TIME_WAIT"

// String returns the attempt in one line.
func (a *Attempt) String() string {
	what := map[Outcome]string{
		Answered: "answered", Unanswered: "no answer yet", Refused: "the endpoint refused it",
		Gone: "its entry is gone before an answer was seen: refused, or deleted", Unknown: "opened",
	}[a.Outcome]
	state := ""
	if a.State != "" && a.Outcome != Gone {
		state = " (" + a.State + ")"
	}
	return fmt.Sprintf("from %s, to endpoint %s: %s%s", a.Client, a.Endpoint, what, state)
}

// Finish computes the summary, which is never empty.
func (f *Follower) Finish() *Follow {
	say := func(format string, args ...any) { f.Summary = append(f.Summary, fmt.Sprintf(format, args...)) }
	client := f.r.Packet.From

	switch n := len(f.Connections); {
	case n > 0:
		say("%s of %s in %.0f s: %s", plural(n, "connection", "connections"), client, f.Seconds, f.outcomes())
	case f.Packets == nil:
		say("no new conntrack entry of %s to %s in %.0f s: no packet of it came, "+
			"or it was refused or dropped, which leaves no entry", client, f.r.Packet.To, f.Seconds)
	case f.Packets.First == 0:
		say("no packet of %s to %s came to nkp's flows in %.0f s: the client did not try, "+
			"or its packets are lost before them (\"nkp trace --live\" names flows that drop them)",
			client, f.r.Packet.To, f.Seconds)
	case f.r.Verdict == Reject:
		say("nkp refused %s in %.0f s (of all clients)",
			plural(int(f.Packets.First), "packet", "packets"), f.Seconds)
	case f.r.Verdict == Drop:
		say("nkp dropped %s in %.0f s (of all clients)",
			plural(int(f.Packets.First), "packet", "packets"), f.Seconds)
	default:
		say("no new conntrack entry of %s to %s in %.0f s, although %s for the Service came: "+
			"from other clients, or dropped before they got an entry",
			client, f.r.Packet.To, f.Seconds, plural(int(f.Packets.First), "first packet", "first packets"))
	}

	if p := f.Packets; p != nil && len(f.Connections) > 0 {
		say("the Service's flows took %s of all clients; %d went to endpoints, %d came back",
			plural(int(p.First), "first packet", "first packets"), p.ToEndpoints, p.ToClients)
	}

	if f.note != "" {
		say("%s", f.note)
	}

	return &f.Follow
}

// outcomes counts the connections by outcome and endpoint: "2 unanswered by 10.0.1.11:8080, 1 answered by
// 10.0.0.11:8080".
func (f *Follower) outcomes() string {
	type kind struct {
		outcome  Outcome
		endpoint netip.AddrPort
	}

	number := map[kind]int{}
	var order []kind
	for _, a := range f.Connections {
		k := kind{a.Outcome, a.Endpoint}
		if number[k]++; number[k] == 1 {
			order = append(order, k)
		}
	}
	slices.SortStableFunc(order, func(a, b kind) int { return number[b] - number[a] })

	var list []string
	for _, k := range order {
		by := "by"
		if k.outcome == Gone || k.outcome == Unknown {
			by = "to"
		}
		list = append(list, fmt.Sprintf("%d %s %s %s", number[k], k.outcome, by, k.endpoint))
	}

	if len(list) > maxListed {
		list = append(list[:maxListed], fmt.Sprintf("and %d more kinds", len(list)-maxListed))
	}
	return strings.Join(list, ", ")
}
