//go:build !windows

package command

// Where the agent answers on this system.
const (
	defaultSocket = "/run/nkp/nkp.sock"
	socketUsage   = "unix socket of the running agent"
)
