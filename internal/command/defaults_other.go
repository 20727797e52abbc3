//go:build !windows

package command

// The agent's default socket on this system.
const (
	defaultSocket = "/run/nkp/nkp.sock"
	socketUsage   = "unix socket of the running agent"
)
