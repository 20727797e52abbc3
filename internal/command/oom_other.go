//go:build !linux

package command

// setOOMScoreAdj does nothing: only Linux has oom_score_adj.
func setOOMScoreAdj(int) error { return nil }
