package ofctrl

import (
	"bytes"
	"context"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Port is a port of the switch, and what its configuration keeps back.
type Port struct {
	Name                             string
	NoReceive, NoForward, NoPacketIn bool
}

// Ports returns the ports of the switch (OpenFlow 1.5.1 §7.2.1, §7.3.5.7).
func (c *Conn) Ports(ctx context.Context) (list []Port, err error) {
	const fixed = 40                                                // bytes of a port before its properties
	const noReceive, noForward, noPacketIn = 1 << 2, 1 << 5, 1 << 6 // OFPPC_*
	err = c.ask(ctx, mpPortDesc, 1, func(b []byte, _ int) ([]byte, error) {
		return append(put32(b, flow.PortAny), 0, 0, 0, 0), nil
	}, func(b []byte) error {
		return records(b, "port description", fixed, 4, func(p []byte) error {
			name, _, _ := bytes.Cut(p[16:32], []byte{0})
			config := u32(p[32:])
			list = append(list, Port{
				string(name),
				config&noReceive != 0,
				config&noForward != 0,
				config&noPacketIn != 0,
			})
			return nil
		})
	})
	return list, err
}

// PortPackets is how many packets a port has received from what is behind it, and sent there.
type PortPackets struct{ Received, Sent uint64 }

// PortPackets returns the packets of each port since it was added, by its number (OpenFlow 1.5.1 §7.3.5.8).
func (c *Conn) PortPackets(ctx context.Context) (map[uint32]PortPackets, error) {
	const fixed = 80 // bytes of a port before its properties
	out := map[uint32]PortPackets{}
	err := c.ask(ctx, mpPortStats, 1, func(b []byte, _ int) ([]byte, error) {
		return append(put32(b, flow.PortAny), 0, 0, 0, 0), nil
	}, func(b []byte) error {
		return records(b, "port statistics", fixed, 0, func(p []byte) error {
			out[u32(p[4:])] = PortPackets{Received: u64(p[16:]), Sent: u64(p[24:])}
			return nil
		})
	})
	return out, err
}
