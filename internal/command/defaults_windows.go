package command

// Where the agent answers on this system.
const (
	defaultSocket = `\\.\pipe\nkp`
	socketUsage   = "named pipe of the running agent, for SYSTEM and Administrators"
)
