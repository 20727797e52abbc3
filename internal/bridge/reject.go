package bridge

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
func (p *Plane) packetIn(in *ofctrl.PacketIn) {
	cookie, mask := p.set.Layout.StaticCookies()
	if in.Table != p.set.Layout.RejectTable() || in.Cookie&mask != cookie {
		return // not ours
	}
	answer, err := reject.Answer(in.Data)
	if err != nil {
		p.rejects.unanswerable.Add(1)
		return
	}
	conn := p.of.Conn()
	if conn == nil {
		p.rejects.failed.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out := flow.Output{Port: flow.PortInPort}
	if err := conn.PacketOut(ctx, in.InPort, answer, out); err != nil {
		p.rejects.failed.Add(1)
		return
	}
	p.rejects.answered.Add(1)
}
