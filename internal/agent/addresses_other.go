//go:build !linux

package agent

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/nkp-proxy/nkp/internal/mode"
)

// LocalAddresses is known on Linux only; elsewhere the Node object's addresses must do.
func (s *Settings) LocalAddresses(mode.Mode) ([]netip.Addr, error) { return nil, nil }

// watchAddresses has nothing to send.
func (s *Settings) watchAddresses(
	context.Context, mode.Mode, []netip.Addr, *slog.Logger,
) <-chan []netip.Addr {
	return nil
}

// deviceOf knows no device: no other system forwards Services by its settings.
func deviceOf(netip.Addr) string { return "" }
