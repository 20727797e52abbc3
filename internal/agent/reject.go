package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ofctrl/reject"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// rejectCounters count what became of packets that were to be refused. Safe for concurrent use.
type rejectCounters struct {
	answered, unanswerable, failed atomic.Uint64
}

// packetIn answers a packet that a flow sent up to be refused. It runs on the connection's packet-in goroutine.
func (a *Agent) packetIn(p *ofctrl.PacketIn) {
	cookie, mask := a.set.Layout.StaticCookies()
	if p.Table != a.set.Layout.RejectTable() || p.Cookie&mask != cookie {
		return // not ours
	}
	answer, err := reject.Answer(p.Data)
	if err != nil {
		a.rejects.unanswerable.Add(1)
		return
	}
	conn := a.of.Conn()
	if conn == nil {
		a.rejects.failed.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out := flow.Output{Port: flow.PortInPort}
	if err := conn.PacketOut(ctx, p.InPort, answer, out); err != nil {
		a.rejects.failed.Add(1)
		return
	}
	a.rejects.answered.Add(1)
}
