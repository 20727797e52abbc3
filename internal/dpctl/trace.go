package dpctl

import (
	"context"
	"errors"
	"strings"
)

// Trace has ovs-vswitchd follow a packet through its flow tables (ofproto/trace), and returns what it prints.
// params are a bridge, the packet, and options.
func (t Daemon) Trace(ctx context.Context, params ...string) (string, error) {
	return t.call(ctx, "ofproto/trace", params...)
}

// Traces does the same for several packets and calls do for each, in order. The first error, of a packet or
// of do, is returned after all of them were followed.
func (t Daemon) Traces(ctx context.Context, params [][]string, do func(text string) error) (err error) {
	broken := t.each(ctx, "ofproto/trace", params, func(_ int, text string, refused *CommandError) {
		switch {
		case err != nil:
		case refused != nil:
			err = refused
		default:
			err = do(text)
		}
	})
	return errors.Join(broken, err)
}

// failOpen is how ofproto/trace prints the flow by which ovs-vswitchd takes a bridge over whose controllers
// are gone (Open vSwitch: ofproto/fail-open.h, FAIL_OPEN_PRIORITY). OpenFlow can neither list nor delete it,
// because its priorities end at 65535.
const failOpen = "priority 15790320"

// FailsOpen reports whether a bridge has failed open: ovs-vswitchd forwards every packet by itself, before
// all flows of table 0. It follows a packet that is no IP packet. No flow can send such a packet through
// conntrack, by which one that comes back is followed without end; ovs-vswitchd bounds how often it looks
// tables up otherwise.
func (t Daemon) FailsOpen(ctx context.Context, bridge string) (bool, error) {
	text, err := t.Trace(ctx, bridge, "in_port=LOCAL,dl_type=0x88b5") // IEEE 802, for experiments
	if err == nil && !strings.Contains(text, "Datapath actions: ") {
		err = errors.New("ovs-vswitchd does not say what it does with a packet")
	}
	return strings.Contains(text, " 0. "+failOpen), err
}
