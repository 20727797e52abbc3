package dpctl

import (
	"fmt"
	"time"
)

// Outcomes counts the connections to an endpoint that a conntrack table holds, by what the endpoint did.
// Entries of closed TCP connections stay in the table for about half a minute, as those of UDP do.
type Outcomes struct {
	Answered   int `json:"answered"`
	Unanswered int `json:"unanswered"` // no answer to the SYN yet
	Refused    int `json:"refused"`    // reset before they were established; the kernel keeps none of these
	// Silent are those of UDP without an answer, which may be normal, and Heard all others of UDP.
	Silent int `json:"-"`
	Heard  int `json:"-"`
}

// Add counts a TCP or UDP connection. It ignores SCTP.
func (o *Outcomes) Add(c *Connection) {
	switch {
	case c.Protocol == "UDP" && c.Unanswered:
		o.Silent++
	case c.Protocol == "UDP":
		o.Heard++
	case c.Protocol != "TCP":
	case c.Refused:
		o.Refused++
	case c.State == "SYN_SENT":
		o.Unanswered++
	default:
		o.Answered++
	}
}

// String returns the numbers in words.
func (o *Outcomes) String() string {
	return fmt.Sprintf("%d answered, %d without answer, %d refused", o.Answered, o.Unanswered, o.Refused)
}

// failingPart is the percentage of failed connections from which Problem reports them. Fewer are normal,
// because every connection is unanswered for a round-trip time, and its entry stays for much longer.
const failingPart = 5

// Silence returns how many UDP connections had no answer when the table was read; "": one or none, or few. It
// may be that none is expected.
func (o *Outcomes) Silence(read time.Time) string {
	if o.Silent < 2 || o.Silent*100 < (o.Silent+o.Heard)*failingPart {
		return ""
	}
	return fmt.Sprintf("UDP connections in the conntrack table at %s: %d without an answer, "+
		"%d answered or not used lately",
		read.UTC().Format(time.TimeOnly+"Z"), o.Silent, o.Heard)
}

// Problem returns how many connections had failed when the table was read; "": none, or few.
func (o *Outcomes) Problem(read time.Time) string {
	failed := o.Unanswered + o.Refused
	if failed == 0 || failed*100 < (failed+o.Answered)*failingPart {
		return ""
	}
	text := fmt.Sprintf("TCP connections in the conntrack table at %s, closed ones for half a minute: %s",
		read.UTC().Format(time.TimeOnly+"Z"), o)
	if o.Refused > 0 && o.Answered+o.Unanswered == 0 {
		text += ": nothing listens at that address and port, or a filter of the endpoint's rejects them"
	}
	return text
}
