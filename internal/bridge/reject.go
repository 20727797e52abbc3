package bridge

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ofctrl/reject"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// rejecter answers packets to Services without endpoints, and counts the answers. Safe for concurrent use.
type rejecter struct {
	layout                         *pipeline.Layout
	answered, unanswerable, failed atomic.Uint64
}

// packetIn answers, over conn, a packet that a flow sent to nkp to be rejected. conn is nil if there is no
// connection now. It runs on the connection's packet-in goroutine.
func (r *rejecter) packetIn(conn *ofctrl.Conn, in *ofctrl.PacketIn) {
	cookie, mask := r.layout.StaticCookies()
	if in.Table != r.layout.RejectTable() || in.Cookie&mask != cookie {
		return // not ours
	}
	answer, err := reject.Answer(in.Data)
	if err != nil {
		r.unanswerable.Add(1)
		return
	}
	if conn == nil {
		r.failed.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out := flow.Output{Port: flow.PortInPort}
	if err := conn.PacketOut(ctx, in.InPort, answer, out); err != nil {
		r.failed.Add(1)
		return
	}
	r.answered.Add(1)
}

// stats returns the counts; dropped packets never get here.
func (r *rejecter) stats(dropped uint64) RejectStats {
	return RejectStats{
		Answered:     r.answered.Load(),
		Unanswerable: r.unanswerable.Load(),
		Dropped:      dropped,
		Failed:       r.failed.Load(),
	}
}
