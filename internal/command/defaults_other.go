//go:build !windows

package command

// The agent's default socket on this system, and the directory of the package's configuration.
const (
	defaultSocket = "/run/nkp/nkp.sock"
	socketUsage   = "unix socket of the running agent"
	defaultDir    = "/etc/nkp"
)
