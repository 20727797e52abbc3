package command

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is the flag -o of a command that prints data.
type output struct {
	format  string
	formats []string // text, the command's own, json, yaml
}

// flag defines -o, and has it checked before the command runs. usage says what the formats are; own are those
// that only this command has.
func (o *output) flag(cmd *cobra.Command, usage string, own ...string) {
	o.formats = slices.Concat([]string{"text"}, own, []string{"json", "yaml"})
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", usage)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		o.format = cmp.Or(o.format, "text")
		return oneOf("-o", o.format, o.formats)
	}
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(o.formats, cobra.ShellCompDirectiveNoFileComp))
}

// outputUsage is the usage of -o for commands without formats of their own.
const outputUsage = "text, json or yaml"

// data reports whether the format is json or yaml, which write prints.
func (o *output) data() bool { return o.format == "json" || o.format == "yaml" }

// write prints v as JSON, or as YAML with the same fields.
func (o *output) write(w io.Writer, v any) error {
	if o.format == "yaml" {
		text, err := yaml.Marshal(v)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
