//go:build linux

package restore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Drops returns which of the base chains of table filter drops what none of its rules accepts: by its policy, or by a rule without a
// match. "" means none, in any of the back ends whose programs are installed. It does not make the kernel create tables.
func Drops(ctx context.Context, backends []Backend, families []k8s.Family, chains ...string) (string, error) {
	for _, b := range backends {
		for _, f := range families {
			t, err := found(b, f)
			if err != nil || !t.InUse("filter") {
				continue
			}
			names := chains
			if b == NFT {
				if names, err = t.ChainNames(ctx, "filter"); err != nil {
					return "", err
				}
			}
			for _, c := range chains {
				if !slices.Contains(names, c) {
					continue
				}
				out, err := t.run(ctx, "-t", "filter", "-S", c)
				if err != nil && !errors.Is(err, errMissing) {
					return "", err
				}
				for l := range strings.Lines(out) {
					if dropsAll.MatchString(strings.TrimSpace(l)) {
						return fmt.Sprintf("chain %s of iptables (%s, %s) drops what none of its rules accepts: %s", c, b, f, strings.TrimSpace(l)), nil
					}
				}
			}
		}
	}
	return "", nil
}

var dropsAll = regexp.MustCompile(`^(-P \S+ DROP|-A \S+ (-m comment --comment ("(\\.|[^"\\])*"|\S+) )?-j (DROP|REJECT)( --reject-with \S+)?)$`)

// LegacyRules returns the rules of the legacy back end: table -> chain -> rules as Chains returns them, of the tables in use. The error is
// ErrNoPrograms if there are tables and no programs to read them.
func LegacyRules(ctx context.Context, f k8s.Family) (map[string]map[string][]string, error) {
	in := Tables{Backend: Legacy, Family: f}
	all := map[string]map[string][]string{}
	for _, table := range []string{"raw", "mangle", "nat", "filter", "security"} {
		if !in.InUse(table) {
			continue
		}
		t, err := found(Legacy, f)
		if err != nil {
			return nil, ErrNoPrograms
		}
		if all[table], err = t.Chains(ctx, table); err != nil {
			return nil, err
		}
	}
	return all, nil
}
