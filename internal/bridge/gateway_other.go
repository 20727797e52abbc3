//go:build !linux

package bridge

import (
	"net/netip"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// gatewayMAC is known on Linux only, where Open vSwitch bridges are.
func gatewayMAC(string, bool) flow.MAC { return flow.MAC{} }

// neighbours is for Linux only, too.
func neighbours(string) map[netip.Addr]flow.MAC { return nil }
