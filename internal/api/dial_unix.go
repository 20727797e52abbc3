//go:build !windows

package api

import (
	"context"
	"net"
)

// Dial connects to the agent that listens on path.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// CheckSocket accepts every name of a socket.
func CheckSocket(string) error { return nil }
