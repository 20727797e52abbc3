package command

// The agent's default socket on this system.
const (
	defaultSocket = `\\.\pipe\nkp`
	socketUsage   = "named pipe of the running agent, for SYSTEM and Administrators"
)
