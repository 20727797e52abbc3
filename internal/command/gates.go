package command

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// gateExternalIPs is the only kube-proxy feature gate that nkp supports: it decides whether externalIPs are served.
const gateExternalIPs = "AllowServiceExternalIPs"

// gateValue is a flag of feature gates.
type gateValue struct{ gates *map[string]bool }

func (g *gateValue) Type() string { return "NAME=BOOL,..." }

func (g *gateValue) String() string {
	if g.gates == nil {
		return ""
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(*g.gates)) {
		list = append(list, fmt.Sprintf("%s=%t", name, (*g.gates)[name]))
	}
	return strings.Join(list, ",")
}

func (g *gateValue) Set(text string) error {
	if *g.gates == nil {
		*g.gates = map[string]bool{}
	}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%q is not NAME=true or NAME=false", part)
		}
		(*g.gates)[strings.TrimSpace(name)] = on
	}
	return nil
}

// unknownGates returns the gates that have no effect in nkp, sorted.
func (s *settings) unknownGates() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.gates)), func(n string) bool { return n == gateExternalIPs })
}
