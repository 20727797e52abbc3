//go:build !linux

package node

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
)

// Read returns the addresses alone: Open vSwitch bridges, for which nkp needs the rest, are on Linux.
func Read() (*Network, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	n := &Network{}
	for _, l := range links {
		link := Link{Index: l.Index, Name: l.Name, Loopback: l.Flags&net.FlagLoopback != 0}
		addrs, _ := l.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				link.Addrs = append(link.Addrs, p.Addr().Unmap())
			}
		}
		n.Links = append(n.Links, link)
	}
	return n, nil
}

// Ask is for Linux only, too.
func Ask(Station) {}

// Watch is for Linux only, too.
func Watch(ctx context.Context, _ func(), _ *slog.Logger) { <-ctx.Done() }
