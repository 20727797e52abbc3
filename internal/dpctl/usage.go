package dpctl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Usage is how full a conntrack table is. A part that could not be read is absent, and NotKnown says why.
type Usage struct {
	// Table is all of the table, in all zones; nil: not known.
	Table *Fill `json:"table"`
	// Zones are the requested zones that have a limit of their own or the datapath's default one. The
	// datapath counts the entries of no other zone.
	Zones []Fill `json:"zones"`
	// Failures counts, by reason, what did not get an entry: on the userspace datapath connections since
	// ovs-vswitchd started, table_full and, in releases that count it, zone_full; on the kernel datapath what
	// the kernel counts in this network namespace, dropped, insert_failed and early_drop (entries that gave
	// way to others). Connections that a limit of a zone keeps out in other releases, or in the kernel, are
	// counted nowhere. nil: not known.
	Failures map[string]uint64 `json:"failures"`
	// NotKnown is why Table or Zones could not be read; "": both were.
	NotKnown string `json:"notKnown,omitempty"`
}

// Fill is the number of entries that a conntrack table, or one zone of it, holds and may hold.
type Fill struct {
	Zone    uint16 `json:"zone,omitempty"` // 0: the whole table
	Entries int    `json:"entries"`
	Limit   int    `json:"limit"`
}

// nearlyFull is the percentage of a limit from which status warns. The alert in deploy/prometheus/rules.yaml
// uses the same.
const nearlyFull = 80

// Full reports whether no further entry fits.
func (f *Fill) Full() bool { return f.Entries >= f.Limit }

// Nearly reports whether the entries are at or near the limit.
func (f *Fill) Nearly() bool { return f.Entries*100 >= f.Limit*nearlyFull }

// String returns the table or zone with its entries and limit.
func (f *Fill) String() string {
	what := "table"
	if f.Zone != 0 {
		what = fmt.Sprintf("zone %d", f.Zone)
	}
	return fmt.Sprintf("conntrack %s %d of %d entries", what, f.Entries, f.Limit)
}

// Fills returns what is known: the table and the zones that have a limit.
func (u *Usage) Fills() []Fill {
	if u.Table == nil {
		return u.Zones
	}
	return append([]Fill{*u.Table}, u.Zones...)
}

// String returns the numbers in one line, and what is not known.
func (u *Usage) String() string {
	parts := []string{}
	for _, f := range u.Fills() {
		parts = append(parts, strings.TrimPrefix(f.String(), "conntrack "))
	}
	for _, why := range slices.Sorted(maps.Keys(u.Failures)) {
		if n := u.Failures[why]; n > 0 {
			parts = append(parts, fmt.Sprintf("failures %s %d", why, n))
		}
	}
	if u.NotKnown != "" {
		parts = append(parts, "not known: "+u.NotKnown)
	} else if len(u.Zones) == 0 {
		parts = append(parts, "nkp's zones have no limit")
	}
	return strings.Join(parts, "; ")
}

// Warnings returns a line for each limit that is reached or near.
func (u *Usage) Warnings() (out []string) {
	for _, f := range u.Fills() {
		raise := "ovs-appctl dpctl/ct-set-maxconns N; " +
			"on the kernel datapath sysctl net.netfilter.nf_conntrack_max=N"
		if f.Zone != 0 {
			raise = fmt.Sprintf("ovs-appctl dpctl/ct-set-limits zone=%d,limit=N", f.Zone)
		}
		switch {
		case f.Full():
			out = append(out, fmt.Sprintf("%s: full, new connections to Services fail; "+
				"raise the limit (%s), or find out who opens so many", &f, raise))
		case f.Nearly():
			out = append(out, fmt.Sprintf("%s: nearly full, beyond the limit new connections to Services "+
				"fail; raise it (%s), or find out who opens so many", &f, raise))
		}
	}
	return out
}

// Limits returns the zones, of those requested, that have a limit, with their entries. It costs ovs-vswitchd
// less than a millisecond, however many entries there are.
func (t Daemon) Limits(ctx context.Context, zones ...uint16) ([]Fill, error) {
	list := []Fill{}
	byDefault := 0
	ask := func(params ...string) error {
		return t.lines(ctx, "dpctl/ct-get-limits", t.params(params...), func(line []byte) error {
			var f Fill
			_, err := fmt.Sscanf(string(line), "zone=%d,limit=%d,count=%d", &f.Zone, &f.Limit, &f.Entries)
			isListed := func(had Fill) bool { return had.Zone == f.Zone }
			switch {
			case err != nil:
				_, _ = fmt.Sscanf(string(line), "default limit=%d", &byDefault) // else another line, or none
			case !slices.Contains(zones, f.Zone) || slices.ContainsFunc(list, isListed):
			case f.Limit > 0 || strings.HasPrefix(t.Datapath, "netdev@"):
				// 0 in the kernel is unlimited; in userspace, nothing fits
				list = append(list, f)
			}
			return nil
		})
	}

	err := ask() // zones with a limit of their own
	if err == nil && byDefault > 0 && len(list) < len(zones) {
		names := make([]string, len(zones))
		for i, z := range zones {
			names[i] = strconv.Itoa(int(z))
		}
		err = ask("zone=" + strings.Join(names, ","))
	}

	slices.SortFunc(list, func(a, b Fill) int { return int(a.Zone) - int(b.Zone) })
	return list, err
}

// Max returns the number of connections that the table of the userspace datapath may hold. The kernel
// datapath does not support this: the command fails.
func (t Daemon) Max(ctx context.Context) (int, error) { return t.number(ctx, "dpctl/ct-get-maxconns") }

// Failures returns Usage.Failures of the userspace datapath.
func (t Daemon) Failures(ctx context.Context) (map[string]uint64, error) {
	counts, err := t.Counters(ctx, "conntrack_full", "conntrack_zone_full")
	out := map[string]uint64{}
	for counter, reason := range map[string]string{
		"conntrack_full":      "table_full",
		"conntrack_zone_full": "zone_full",
	} {
		if n, ok := counts[counter]; ok {
			out[reason] = n
		}
	}
	return out, err
}

// number runs a command that answers with a number.
func (t Daemon) number(ctx context.Context, command string) (int, error) {
	text, err := t.call(ctx, command, t.params()...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(text))
}
