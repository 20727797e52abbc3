//go:build !linux

package bridge

import "net/netip"

// Routes to the bridge exist on Linux only, where Open vSwitch bridges are.

func setRoutes(string, []route, []netip.Addr) error { return nil }

func defaultRouteOn(string) bool { return true }

// RemoveRoutes has nothing to remove.
func RemoveRoutes(string) error { return nil }
