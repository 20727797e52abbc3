package command

import (
	"strings"

	"github.com/spf13/pflag"
)

// dashes lets flags be written with underscores, as kube-proxy does.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}
