package command

// The agent's default socket on this system. There is no default directory of configuration: every user may
// create one at the root of a drive.
const (
	defaultSocket = `\\.\pipe\nkp`
	socketUsage   = "named pipe of the running agent, for SYSTEM and Administrators"
	defaultDir    = ""
)
