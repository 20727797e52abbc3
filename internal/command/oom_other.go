//go:build !linux

package command

// setOOMScoreAdj does nothing: only Linux has that.
func setOOMScoreAdj(int) error { return nil }
