package pipeline

import (
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Packets of Services are resubmitted to tableCount and then continue whatever they match there: its flows
// have no actions, only counters. So forwarding is the same with and without counters, and each counter has a
// flow that no change of endpoints touches.
//
// Every packet of a connection is counted once: the one that opens it, which has no ct_mark yet, by reg1; all
// others by the connection's mark. So a client that retransmits before the first reply opens one connection,
// also on the kernel datapath, where such packets match the frontend again. TCP SYNs that bypass conntrack
// (table 3) are the exception: each one counts as an opened connection.

// Priorities in tableCount; they identify what a flow counts.
const (
	prioOpened       = 300
	prioFromClient   = 200
	prioFromEndpoint = 100
)

// Tally is the kind of packets that a flow of the counter table counts.
type Tally uint8

// The packets that open connections (one for each connection), all others of the client's direction, and
// those of the endpoint's.
const (
	TallyNone Tally = iota
	TallyOpened
	TallyFromClient
	TallyFromEndpoint
)

// CounterTable is the table whose flows count the traffic of Services.
func (l Layout) CounterTable() uint8 { return l.table(tableCount) }

// Tally returns the Service port and the kind of packets that a flow of the counter table counts, by its
// cookie and priority.
func (c *Compiler) Tally(cookie uint64, priority uint16) (k8s.PortName, Tally) {
	n, ok := c.Owner(cookie)
	if !ok {
		return n, TallyNone
	}
	switch priority {
	case prioOpened:
		return n, TallyOpened
	case prioFromClient:
		return n, TallyFromClient
	case prioFromEndpoint:
		return n, TallyFromEndpoint
	}
	return n, TallyNone
}

// counters adds the flows that count a Service port's traffic, whether it has endpoints or not: connections
// outlive them.
func (s *service) counters() {
	if !s.Counters {
		return
	}
	opened := flow.Match{CTState: opening, CTMark: flow.Bits{Mask: markService}}
	opened.Reg[1] = flow.Bits{Value: s.id << markIDShift, Mask: markIDMask}
	s.add(tableCount, prioOpened, s.id, opened)
	known := flow.Match{
		CTState: flow.Bits{Value: flow.CTTracked, Mask: flow.CTTracked | flow.CTReply},
		CTMark:  flow.Bits{Value: s.id<<markIDShift | markService, Mask: markIDMask | markService},
	}
	s.add(tableCount, prioFromClient, s.id, known)
	known.CTState.Value |= flow.CTReply
	s.add(tableCount, prioFromEndpoint, s.id, known)
}

// counted prepends the resubmit to the counter table to the next actions for a Service's packet.
func (b *builder) counted(next ...flow.Action) []flow.Action {
	if !b.Counters {
		return next
	}
	return append([]flow.Action{b.resubmit(tableCount)}, next...)
}
