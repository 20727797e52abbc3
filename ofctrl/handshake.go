package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// versionNames are the wire versions (OpenFlow 1.5.1 §7.1.1).
var versionNames = map[uint8]string{1: "1.0", 2: "1.1", 3: "1.2", 4: "1.3", 5: "1.4", 6: "1.5"}

// missSendLen is sent in SET_CONFIG. Open vSwitch sends packet-in messages to its management socket only if
// it is not zero; how much of a packet is sent is up to each flow's controller action.
const missSendLen = 0xffff

// handshake exchanges hellos, requests the features and enables packet-in and request forwarding
// (OpenFlow 1.5.1 §6.3, §7.3.1, §7.3.2, §7.3.10). It runs before the goroutines are started.
func (c *Conn) handshake(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.nc.SetDeadline(time.Unix(1, 0)) })
	what, err := c.shakeHands()
	if stop() {
		return err
	}
	// The deadline was set, so the connection is of no use even if this came just in time.
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w %s: %w", ErrNoAnswer, what, ctx.Err())
	}
	return errors.Join(ctx.Err(), err)
}

const (
	xidHello = 1 + iota
	xidFeatures
	xidConfig
	xidAsync
	xidBarrier
)

// shakeHands performs the handshake. what names the last request to the switch.
func (c *Conn) shakeHands() (what string, err error) {
	what = "hello"
	// hello with a version bitmap that has only the bit of 1.5 (§7.5.1)
	if err := c.write(message(typeHello, xidHello, 0, 1, 0, 8, 0, 0, 0, 1<<wireVersion)); err != nil {
		return what, err
	}
	if err := c.awaitHello(); err != nil {
		return what, err
	}
	what = "the request for its features and the barrier after it"
	b := message(typeFeaturesRequest, xidFeatures)
	b = append(b, message(typeSetConfig, xidConfig, 0, 0, missSendLen>>8, missSendLen&0xff)...)
	b = append(b, asyncConfig(xidAsync)...)
	b = append(b, message(typeBarrierRequest, xidBarrier)...)
	if err := c.write(b); err != nil {
		return what, err
	}
	return what, c.awaitFeatures()
}

func (c *Conn) awaitHello() error {
	f, err := c.readTraced()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("switch closed the connection before its hello: %w", err)
		}
		return err
	}
	switch {
	case f.typ() == typeError:
		return c.helloError(f)
	case f.typ() != typeHello:
		return fmt.Errorf("%w: %v instead of a hello", ErrProtocol, f.typ())
	}
	offers := helloVersions(f)
	if offers&(1<<wireVersion) == 0 {
		return c.versionError(offers)
	}
	return nil
}

// helloVersions returns the versions that a hello offers as a bitmap. Without a bitmap the header's version
// means that one and all lower ones (§6.3).
func helloVersions(f frame) uint32 {
	for b := f.body(); len(b) >= 4; {
		n := int(u16(b[2:]))
		if n < 4 || n > len(b) {
			break
		}
		if u16(b) == 1 && n >= 8 {
			return u32(b[4:])
		}
		b = b[min((n+7)&^7, len(b)):]
	}
	if v := f.version(); v < 32 {
		return 2<<v - 2
	}
	return 0
}

func (c *Conn) versionError(offers uint32) *VersionError {
	e := &VersionError{Target: c.target, Bridge: c.opts.Bridge}
	for v := uint8(1); v < 32; v++ {
		if offers&(1<<v) != 0 {
			if name := versionNames[v]; name != "" {
				e.Offers = append(e.Offers, name)
			}
		}
	}
	return e
}

// helloError turns an error that answers the hello into a typed one; its data is a text (§7.5.4).
func (c *Conn) helloError(f frame) error {
	e, data := parseError(f)
	if e.Type != 0 {
		return e
	}
	return &VersionError{Target: c.target, Bridge: c.opts.Bridge, Text: printable(data)}
}

// printable keeps what can be shown of a text from the switch.
func printable(b []byte) string {
	const most = 200
	out := make([]byte, 0, most)
	for _, ch := range b {
		if len(out) == most {
			break
		}
		if ch >= ' ' && ch <= '~' {
			out = append(out, ch)
		}
	}
	return string(out)
}

// asyncConfig asks for packet-in of every reason and for request forwarding, and for nothing else
// (§7.3.10; ofp_async_config_prop_reasons).
func asyncConfig(xid uint32) []byte {
	const (
		packetInOther, packetInSame           = 0, 1 // §7.3.10, enum ofp_async_config_prop_type
		portStatusOther, portStatusSame       = 2, 3
		flowRemovedOther, flowRemovedSame     = 4, 5
		requestForwardOther, requestForwardIt = 10, 11
	)
	var b []byte
	prop := func(typ uint16, mask uint32) { b = put32(put16(put16(b, typ), 8), mask) }
	prop(packetInOther, 0)
	prop(packetInSame, 0x3f)
	prop(portStatusOther, 0)
	prop(portStatusSame, 0)
	prop(flowRemovedOther, 0)
	prop(flowRemovedSame, 0)
	prop(requestForwardOther, 0)
	prop(requestForwardIt, 3)
	return message(typeSetAsync, xid, b...)
}

// awaitFeatures reads until the barrier's reply. If the switch refuses the configuration of asynchronous
// messages, it goes on, because programming works without them.
func (c *Conn) awaitFeatures() error {
	got := false
	for range 1000 {
		f, err := c.readTraced()
		if err != nil {
			return err
		}

		switch f.typ() {
		case typeEchoRequest:
			if err := c.write(echoReply(f)); err != nil {
				return err
			}
		case typeFeaturesReply:
			got = true
		case typeError:
			if f.xid() == xidHello {
				return c.helloError(f)
			}
			e, _ := parseError(f)
			if f.xid() == xidFeatures || f.xid() == xidBarrier {
				return e
			}
			c.opts.Log.Warn("switch refuses asynchronous messages", "error", e)
		case typeBarrierReply:
			if !got {
				return fmt.Errorf("%w: no features reply", ErrProtocol)
			}
			return nil
		}
	}

	return fmt.Errorf("%w: no reply to a barrier within 1000 messages", ErrProtocol)
}

func (c *Conn) readTraced() (frame, error) {
	f, err := c.frames.next()
	if err == nil {
		c.trace.frame("<", f)
		if f.version() != wireVersion && f.typ() != typeHello && f.typ() != typeError {
			err = fmt.Errorf("%w: message of version %d", ErrProtocol, f.version())
		}
	}
	return f, err
}

// parseError parses an OFPT_ERROR message and returns its data, too (§7.5.4).
func parseError(f frame) (*SwitchError, []byte) {
	b := f.body()
	if len(b) < 4 {
		return &SwitchError{Type: 0xfffe}, nil
	}
	e := &SwitchError{Type: u16(b), Code: u16(b[2:])}
	b = b[4:]
	if e.Type == typeExperimenterError && len(b) >= 4 {
		e.Experimenter = u32(b)
		b = b[4:]
	}
	return e, b
}
