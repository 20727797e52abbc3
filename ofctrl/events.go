package ofctrl

import "sync/atomic"

// events passes packets and reports from the reader to the callbacks. It never blocks the reader.
type events struct {
	onPacket  func(*PacketIn)
	onForward func(Forward)
	packets   chan *PacketIn
	forwards  chan Forward
	drops     atomic.Uint64 // packets that found the queue full
	lost      atomic.Bool   // a report found the queue full
}

func newEvents(o Options) *events {
	return &events{
		onPacket: o.OnPacketIn, onForward: o.OnForward,
		packets: make(chan *PacketIn, o.PacketInQueue), forwards: make(chan Forward, 64),
	}
}

func (e *events) packet(p *PacketIn) {
	select {
	case e.packets <- p:
	default:
		e.drops.Add(1)
	}
}

func (e *events) forward(f Forward) {
	if e.onForward == nil {
		return
	}
	select {
	case e.forwards <- f:
	default:
		e.lost.Store(true)
	}
}

// run calls back until done is closed.
func (e *events) run(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case p := <-e.packets:
			e.onPacket(p)
		case f := <-e.forwards:
			e.onForward(f)
			if e.lost.Swap(false) {
				e.onForward(Forward{Lost: true})
			}
		}
	}
}
