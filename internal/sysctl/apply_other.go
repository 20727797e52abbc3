//go:build !linux

package sysctl

import "log/slog"

// Apply does nothing: these settings are Linux's.
func Apply(Settings, *slog.Logger) ([]Change, []string) { return nil, nil }

// ReservePorts does nothing.
func ReservePorts(int, int, *slog.Logger) (Change, error) { return Change{}, nil }

// Restore does nothing.
func Restore([]Change) ([]string, []Change) { return nil, nil }
