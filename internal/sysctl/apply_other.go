//go:build !linux

package sysctl

import "log/slog"

// Apply does nothing: these settings are Linux's.
func Apply(Settings, *slog.Logger) []string { return nil }
