//go:build !linux

package fallback

import (
	"errors"
	"net/netip"
)

type rawEndpoint struct{}

func openEndpoint(netip.AddrPort) (*rawEndpoint, error) { return nil, errors.ErrUnsupported }

func (*rawEndpoint) Close() error { return nil }

func (*rawEndpoint) hear(string) (from netip.AddrPort, err error) { return from, errors.ErrUnsupported }

func (*rawEndpoint) answer(netip.AddrPort, string) error { return errors.ErrUnsupported }
