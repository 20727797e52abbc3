package command

import (
	"io"

	"github.com/spf13/cobra"
)

// Commands returns nkp's commands, for generated documentation. They must not be executed.
func Commands() []*cobra.Command { return newRoot(io.Discard, io.Discard).Commands() }
