package dpctl

import (
	"context"
	"errors"
	"fmt"
)

// Fragments is how many IP fragments the userspace datapath holds until their packets are complete, and may
// hold. It is one number for all senders, and a fragment whose others do not come is held for 15 s (Open
// vSwitch: lib/ipf.c), so that one sender can fill it.
func (t Daemon) Fragments(ctx context.Context) (f Fill, err error) {
	found := 0
	err = t.lines(ctx, "dpctl/ipf-get-status", t.params(), func(line []byte) error {
		for format, n := range map[string]*int{
			" max num frags (v4/v6): %d": &f.Limit,
			" num frag: %d":              &f.Entries,
		} {
			if _, err := fmt.Sscanf(string(line), format, n); err == nil {
				found++
			}
		}
		return nil
	})
	if err == nil && found != 2 {
		err = errors.New("ovs-vswitchd does not say how many fragments it holds")
	}
	return f, err
}

// FragmentsWarning returns a line if no more fragments are taken, or nearly; "": there is room.
func FragmentsWarning(f Fill) string {
	if f.Limit == 0 || !f.Nearly() {
		return ""
	}
	return fmt.Sprintf("the datapath holds %d fragments of incomplete packets, of at most %d: "+
		"beyond, UDP to Services in fragments is lost; "+
		"raise the limit (ovs-appctl dpctl/ipf-set-max-nfrags N), or find out who sends fragments without "+
		"the rest of the packet", f.Entries, f.Limit)
}
