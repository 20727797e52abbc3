//go:build unix

package command

import (
	"fmt"
	"os"
	"slices"
	"syscall"
)

// restart replaces the process with a new one with the same arguments, environment and process id, unnoticed
// by supervisors. It returns only if that fails. args are those of Main.
func restart(args []string) error {
	if !slices.Equal(args, os.Args[1:]) {
		return fmt.Errorf("%w (this process is not nkp's own)", errRestart)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("%w: %w", errRestart, err)
	}
	if _, err := os.Stat(self); err != nil {
		self = "/proc/self/exe" // the file has been replaced since
	}
	return fmt.Errorf("%w: %s: %w", errRestart, self, syscall.Exec(self, os.Args, os.Environ()))
}
