//go:build !linux

package bridge

import "github.com/nkp-proxy/nkp/pipeline/flow"

// gatewayMAC is known on Linux only, where Open vSwitch bridges are.
func gatewayMAC(string, bool) flow.MAC { return flow.MAC{} }
