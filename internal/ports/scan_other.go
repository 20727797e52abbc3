//go:build !linux

package ports

import (
	"errors"
	"net/netip"
)

// Scan is for Linux only.
func Scan() ([]Listener, error) { return nil, errors.ErrUnsupported }

// ReceivesUDP is for Linux only.
func ReceivesUDP(_, _ netip.AddrPort) (bool, error) { return false, errors.ErrUnsupported }

func owners(map[uint32]bool) map[uint32]Process { return nil }
