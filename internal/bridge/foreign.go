package bridge

import (
	"fmt"
	"strings"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Foreign are the foreign flows that can keep packets of Services from arriving. nkp reports them and never
// deletes them (docs/decisions/others-keep-their-say.md).
type Foreign struct {
	// Inside are flows in nkp's own tables, where no other program should have any: at most ofctrl.MaxKept
	// together with Before.
	Inside []*flow.Flow
	Number int // of those in nkp's own tables
	// Before are flows of the table that nkp shares with others. Packets to a Service match them and do not
	// get to nkp's flows.
	Before []*flow.Flow
	// Kept are Inside and those flows of the shared table that packets can match before nkp's, for any
	// Services.
	Kept []*flow.Flow

	changes uint64 // Conn.ForeignChanges as of this state
	// meets reports of flows of the shared table whether one of the Services' packets can match. It is valid
	// until the next read-back.
	meets map[*flow.Flow]bool
}

// mayInterfere reports whether a foreign flow can keep Service packets, or their answers, from arriving.
func (s *Settings) mayInterfere(f *flow.Flow) bool {
	return !s.Layout.Shared(f.Table) || s.Layout.Precedes(f)
}

// knownForeign returns the foreign flows of a connection (Conn.Foreign). meets has results of an earlier
// call; it may be nil.
func (s *Settings) knownForeign(conn *ofctrl.Conn, c *pipeline.Compiler, meets map[*flow.Flow]bool) Foreign {
	out := Foreign{changes: conn.ForeignChanges(), meets: map[*flow.Flow]bool{}}
	known := conn.Foreign()
	out.Kept = known.Kept
	for _, f := range known.Kept {
		switch {
		case !s.Layout.Shared(f.Table):
			out.Inside = append(out.Inside, f)
		case pipeline.Ends(f):
			met, known := meets[f]
			if !known {
				met = c.Meets(&f.Match)
			}
			if out.meets[f] = met; met {
				out.Before = append(out.Before, f)
			}
		}
	}
	for _, t := range s.Layout.Tables() {
		if !s.Layout.Shared(t) {
			out.Number += known.Number[t]
		}
	}
	return out
}

// lookForeign updates foreign if the switch has reported changes. With again it also compares the flows with
// the present Services.
func (g *programmer) lookForeign(again bool) {
	if g.conn != nil && g.foreign.changes != g.conn.ForeignChanges() {
		g.others = nil // a new flow can have taken the place of one of nkp's, in a table of the same size
	}
	switch {
	case g.conn == nil || g.compiler == nil:
		g.foreign = Foreign{}
	case again:
		g.foreign = g.set.knownForeign(g.conn, g.compiler, nil)
	case g.foreign.changes != g.conn.ForeignChanges():
		g.foreign = g.set.knownForeign(g.conn, g.compiler, g.foreign.meets)
	}
}

// maxForeignLines bounds how many foreign flows are listed, of each kind.
const maxForeignLines = 5

// writeTo writes the lines of `nkp diff`.
func (f *Foreign) writeTo(b *strings.Builder) {
	for _, line := range briefly(f.Inside, f.Number) {
		fmt.Fprintf(b, "! another owner's flow in nkp's tables: %s\n", line)
	}
	for _, line := range briefly(f.Before, len(f.Before)) {
		fmt.Fprintf(b, "! another owner's flow before nkp's: %s\n", line)
	}
}

// briefly returns the first flows in ovs-ofctl's syntax, and how many more there are.
func briefly(list []*flow.Flow, number int) (out []string) {
	for _, f := range list[:min(len(list), maxForeignLines)] {
		out = append(out, f.String())
	}
	if more := number - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

// warnings returns the warnings of `nkp status` about the flows.
func (f *Foreign) warnings() (out []string) {
	const todo = "nkp leaves flows of others alone: find the owner by the cookie, " +
		"see \"nkp trace --live\" for the command that deletes one"
	if f.Number > 0 {
		out = append(out, fmt.Sprintf("flows of other owners in nkp's tables: "+
			"%d. Service packets that match one may be lost. %s: %s", f.Number, todo,
			strings.Join(briefly(f.Inside, f.Number), "; ")))
	}
	if n := len(f.Before); n > 0 {
		out = append(out, fmt.Sprintf("flows of other owners before nkp's in table 0: "+
			"%d. Service packets that match one do not get to nkp. %s: %s", n, todo,
			strings.Join(briefly(f.Before, n), "; ")))
	}
	return out
}
