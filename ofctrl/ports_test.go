//go:build linux

package ofctrl

import (
	"fmt"
	"slices"
	"testing"
)

// Ports has what ovs-ofctl mod-port set.
func TestPorts(t *testing.T) {
	b := newBridge(t)
	c := b.dial(Options{})
	for _, x := range []struct {
		set, clear string
		want       Port
	}{
		{"no-receive", "receive", Port{NoReceive: true}},
		{"no-forward", "forward", Port{NoForward: true}},
		{"no-packet-in", "packet-in", Port{NoPacketIn: true}},
	} {
		for _, step := range []struct {
			action string
			want   Port
		}{{x.set, x.want}, {x.clear, Port{}}} {
			b.ofctl("mod-port", b.name, step.action)
			step.want.Name = b.name
			list, err := c.Ports(t.Context())
			if err != nil || !slices.Contains(list, step.want) {
				t.Error(step.action, fmt.Sprintf("%+v", list), err)
			}
		}
	}
}

// PortPackets has the packets of each port.
func TestPortPackets(t *testing.T) {
	b := newBridge(t)
	c := b.dial(Options{})
	if list, err := c.PortPackets(t.Context()); err != nil || len(list) == 0 {
		t.Error(list, err)
	}
}
