//go:build !linux

package fallback

import (
	"context"
	"errors"
	"net/netip"
)

func (p *Plane) own(context.Context) (func(), error) { return func() {}, nil }

func isLocal(a netip.Addr) bool { return a.IsLoopback() }

func netnsFile(string) (string, error) { return "", errors.ErrUnsupported }

func netnsCookie() string { return "" }
