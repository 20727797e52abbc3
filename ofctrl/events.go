package ofctrl

import "sync/atomic"

// events passes packets from the reader to the callback. It never blocks the reader.
type events struct {
	onPacket func(*PacketIn)
	packets  chan *PacketIn
	drops    atomic.Uint64 // packets that found the queue full
}

func newEvents(o Options) *events {
	return &events{onPacket: o.OnPacketIn, packets: make(chan *PacketIn, o.PacketInQueue)}
}

func (e *events) packet(p *PacketIn) {
	select {
	case e.packets <- p:
	default:
		e.drops.Add(1)
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
		}
	}
}
