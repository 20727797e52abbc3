//go:build !linux

package bridge

// Routes to the bridge exist on Linux only, where Open vSwitch bridges are.

func setRoutes(string, []route) error { return nil }

// RemoveRoutes has nothing to remove.
func RemoveRoutes(string) error { return nil }
