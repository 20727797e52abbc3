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

// Drops returns which of the base chains of table filter drops what none of its rules accepts: by its policy,
// or by a rule without a match. "" means none, in any of the back ends; legacy's programs must be installed.
// It does not make the kernel create tables.
func Drops(ctx context.Context, backends []Backend, families []k8s.Family, chains ...string) (string, error) {
	for _, b := range backends {
		for _, f := range families {
			list := nftDrops
			if b == Legacy {
				list = legacyDrops
			}
			lines, err := list(ctx, f, chains)
			if err != nil {
				return "", err
			}
			for _, l := range lines {
				if dropsAll.MatchString(l) {
					return dropsRest(b, f, l), nil
				}
			}
		}
	}
	return "", nil
}

// dropsRest says that a line of iptables -S drops what comes to the end of its chain.
func dropsRest(b Backend, f k8s.Family, line string) string {
	return fmt.Sprintf("chain %s of iptables (%s, %s) drops what none of its rules accepts: %s",
		strings.Fields(line)[1], b, f, line)
}

// LegacyDropsAll does the same for a chain of the legacy back end that has no rule which may accept anything.
// Without its programs it returns "".
func LegacyDropsAll(ctx context.Context, f k8s.Family, chain string) (drops string, err error) {
	lines, err := legacyDrops(ctx, f, []string{chain})
	for _, l := range lines {
		if dropsAll.MatchString(l) {
			drops = dropsRest(Legacy, f, l)
		} else if strings.HasPrefix(l, "-A ") {
			return "", err
		}
	}
	return drops, err
}

// legacyDrops returns some chains of table filter as iptables -S prints them.
func legacyDrops(ctx context.Context, f k8s.Family, chains []string) (lines []string, err error) {
	t, err := installedTables(Legacy, f)
	if err != nil || !t.InUse("filter") {
		return nil, nil
	}
	for _, c := range chains {
		out, err := t.run(ctx, "-t", "filter", "-S", c)
		if err != nil && !errors.Is(err, errMissing) {
			return nil, err
		}
		lines = append(lines, strings.Split(out, "\n")...)
	}
	return lines, nil
}

// nftDrops does the same from what the kernel has, which iptables-nft may not be able to print.
func nftDrops(_ context.Context, f k8s.Family, chains []string) (lines []string, err error) {
	all, err := nftChains(f, "filter")
	for _, c := range all {
		if !slices.Contains(chains, c.name) {
			continue
		}
		if c.drops {
			lines = append(lines, "-P "+c.name+" DROP")
		}
		rules, err := nftRules(f, "filter", c.name)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			lines = append(lines, "-A "+c.name+" "+r.text(f))
		}
	}
	return lines, err
}

var dropsAll = regexp.MustCompile(`^(-P \S+ DROP|` +
	`-A \S+ (-m comment --comment ("(\\.|[^"\\])*"|\S+) )?-j (DROP|REJECT)( --reject-with \S+)?)$`)

// tableNames are the tables of iptables.
var tableNames = []string{"raw", "mangle", "nat", "filter", "security"}

// LegacyRules returns the rules of the legacy back end: table -> chain -> rules as Chains returns them, of
// the tables in use. The error is ErrNoPrograms if there are tables and no programs to read them.
func LegacyRules(ctx context.Context, f k8s.Family) (map[string]map[string][]string, error) {
	in := Tables{Backend: Legacy, Family: f}
	all := map[string]map[string][]string{}
	for _, table := range tableNames {
		if !in.InUse(table) {
			continue
		}
		t, err := installedTables(Legacy, f)
		if err != nil {
			return nil, ErrNoPrograms
		}
		if all[table], err = t.Chains(ctx, table); err != nil {
			return nil, err
		}
	}
	return all, nil
}
