package ofctrl

import (
	"io"
	"log/slog"
	"time"
)

// Options of a connection. The zero value works for a unix: or tcp: target.
type Options struct {
	Bridge string   // the bridge's name, for error texts
	TLS    TLSFiles // for an ssl: target

	ConnectTimeout time.Duration // for dialing and the handshake; 0 means 10 s
	// EchoInterval is how long the switch may be quiet before it is sent an echo request (0 means 5 s), and
	// EchoTimeout how long it may then take to send any message (0 means 10 s) before the connection is
	// closed with ErrSilent.
	EchoInterval, EchoTimeout time.Duration
	// AnswerTimeout is how long the switch may leave a request without any message in reply (0 means 30 s; a
	// switch that is too busy to answer echoes is given up after 15 s). A reply in many messages may take ten
	// times as long altogether. After that the connection is closed with ErrNoAnswer.
	AnswerTimeout time.Duration
	// OnAnswer is called after each request that was answered, on the goroutine that sent it. It must not
	// block.
	OnAnswer func()

	// OnPacketIn receives the packets that flows send to the controller, one at a time, in order, on a
	// goroutine of the connection. It must not call Close. While PacketInQueue packets (0 means 256) are
	// waiting, further ones are dropped and counted.
	OnPacketIn    func(*PacketIn)
	PacketInQueue int
	// OnOthers is called when Conn.Others or Conn.Tracks changes for some table. It must not block.
	OnOthers func()
	// OnForward is called when another controller has changed a group or a meter (OpenFlow 1.5.1 §7.4.6).
	// The switch reports no changes of this connection's own. It must not block.
	OnForward func()

	Log *slog.Logger // nil: no logs

	// maxMessage lowers the length at which groups are sent in parts; 0 means flow.MaxMessage. For tests.
	maxMessage int
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.ConnectTimeout, 10*time.Second)
	def(&o.EchoInterval, 5*time.Second)
	def(&o.EchoTimeout, 10*time.Second)
	def(&o.AnswerTimeout, 30*time.Second)
	if o.PacketInQueue <= 0 {
		o.PacketInQueue = 256
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.maxMessage <= 0 {
		o.maxMessage = maxMessage
	}
	return o
}
