//go:build !linux

package live

import (
	"errors"
	"net/netip"
)

// RouteOf works on Linux only.
func RouteOf(_, _ netip.Addr) (string, error) { return "", errors.New("only Linux can be asked") }

// closed works on Linux only.
func closed(netip.Addr) error { return nil }

// forwards works on Linux only.
func forwards(_, _ netip.Addr, _ string) (string, error) {
	return "", errors.New("only Linux can be asked")
}
