//go:build !unix

package command

// restart leaves the restart to the supervisor of the process: the service manager, or kubelet.
func restart([]string) error { return errRestart }
