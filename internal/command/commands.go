package command

import (
	"io"

	"github.com/spf13/cobra"
)

// Commands returns nkp's commands, for whoever writes about them; they are not to be executed.
func Commands() []*cobra.Command { return newRoot(io.Discard, io.Discard).Commands() }
