package pipeline

import (
	"fmt"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// No flow matches ct_state's snat or dnat bit. One would be enough to keep established connections from a NIC: tc flower has
// no such bits, and Open vSwitch puts a bit that any flow of a table matches into the megaflows of all packets that visit the
// table. By packet: TestEstablishedMegaflows.
func TestNoNATBits(t *testing.T) {
	const natBits = 0x40 | 0x80 // CS_SRC_NAT, CS_DST_NAT (Open vSwitch: include/openvswitch/packets.h)
	for i := range 16 {
		cfg := testConfig()
		cfg.NodeElsewhere, cfg.NoNullNAT, cfg.NoGuards, cfg.MasqueradeAll = families[:2*(i&1)], i&2 != 0, i&4 != 0, i&8 != 0
		var ports []*k8s.ServicePort
		for n, s := range kinds {
			s.VIP = n
			ports = append(ports, s.ServicePort())
		}
		for _, f := range compile(t, cfg, ports...).State().Flows {
			if f.Match.CTState.Mask&natBits != 0 {
				t.Errorf("configuration %s: %v", fmt.Sprintf("%04b", i), f)
			}
		}
	}
}
