package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// flagValue is the pflag.Value of a setting that is more than a text or a number.
type flagValue[T any] struct {
	at    *T
	kind  string // in help
	parse func(string) (T, error)
	text  func(T) string
}

// Type is part of pflag.Value.
func (v *flagValue[T]) Type() string { return v.kind }

// String is part of pflag.Value.
func (v *flagValue[T]) String() string { return v.text(*v.at) }

// Set is part of pflag.Value. A text that cannot be parsed changes nothing.
func (v *flagValue[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.at = parsed
	}
	return err
}

func sameText(text string) string { return text }

// socketFlag takes the path of the agent's socket; empty: none.
func socketFlag(at *string) pflag.Value {
	parse := func(text string) (string, error) {
		if text == "" {
			return "", nil
		}
		return text, api.CheckSocket(text)
	}
	return &flagValue[string]{at, "path", parse, sameText}
}

func addrFlag(at *netip.Addr) pflag.Value {
	return &flagValue[netip.Addr]{at, "IP", parseAddr, addrText}
}

// hexFlag takes a number that people write in hexadecimal; decimal works too.
func hexFlag(at *uint32) pflag.Value {
	parse := func(text string) (uint32, error) {
		v, err := strconv.ParseUint(text, 0, 32)
		if err != nil {
			return 0, fmt.Errorf("%q is not a number up to 0xffffffff", text)
		}
		return uint32(v), nil
	}
	return &flagValue[uint32]{at, "number", parse, func(v uint32) string { return fmt.Sprintf("%#x", v) }}
}

// guardsFlag takes what strconv.ParseBool does, and auto.
func guardsFlag(at *bridge.Guards) pflag.Value {
	parse := func(text string) (bridge.Guards, error) {
		on, err := strconv.ParseBool(text)
		switch {
		case text == string(bridge.GuardsAuto):
			return bridge.GuardsAuto, nil
		case err != nil:
			return "", errors.New("not auto, true or false")
		}
		return bridge.Guards(strconv.FormatBool(on)), nil
	}
	text := func(g bridge.Guards) string { return string(cmp.Or(g, bridge.GuardsAuto)) }
	return &flagValue[bridge.Guards]{at, "auto|true|false", parse, text}
}

func macFlag(at *flow.MAC) pflag.Value {
	text := func(m flow.MAC) string {
		if m.IsZero() {
			return ""
		}
		return m.String()
	}
	return &flagValue[flow.MAC]{at, "MAC", bridge.ParseMAC, text}
}

// listFlag takes a comma-separated list of what parse does.
func listFlag[T any](at *[]T, kind string, parse func(string) (T, error), text func(T) string) pflag.Value {
	join := func(list []T) string {
		texts := make([]string, len(list))
		for i, v := range list {
			texts[i] = text(v)
		}
		return strings.Join(texts, ",")
	}
	split := func(text string) ([]T, error) { return parseList(text, parse) }
	return &flagValue[[]T]{at, kind, split, join}
}

func addrsFlag(at *[]netip.Addr) pflag.Value { return listFlag(at, "IP,...", parseAddr, addrText) }

func prefixesFlag(at *[]netip.Prefix) pflag.Value {
	return listFlag(at, "CIDR,...", parsePrefix, netip.Prefix.String)
}

func servicesFlag(at *[]k8s.ServiceName) pflag.Value {
	return listFlag(at, "NAMESPACE/NAME,...", k8s.ParseServiceName, k8s.ServiceName.String)
}

func devicesFlag(at *[]string) pflag.Value {
	return listFlag(at, "NAME[*],...", func(s string) (string, error) { return s, nil }, sameText)
}

// parseList parses what commas separate. Blanks around an item and empty items do not count.
func parseList[T any](text string, parse func(string) (T, error)) (list []T, err error) {
	for s := range strings.SplitSeq(text, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		v, err := parse(s)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return a, fmt.Errorf("%q is not an IP address", text)
	}
	return a.Unmap(), nil
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not a range such as 10.0.0.0/16", text)
	}
	return p.Masked(), nil
}
