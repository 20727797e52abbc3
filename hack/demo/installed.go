//go:build linux

package main

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"
)

// installed is what nkp has on the switch, as ovs-ofctl shows it: flows with their age, and groups.
type installed struct {
	flows  map[string]time.Duration
	groups map[string]bool
}

func (l *lab) installed() (i installed, err error) {
	text, err := l.Ofctl("dump-flows", l.Bridge, nkpCookies)
	if err != nil {
		return i, err
	}
	if i.flows, err = parseFlows(text); err != nil {
		return i, err
	}
	if text, err = l.Ofctl("dump-groups", l.Bridge); err != nil {
		return i, err
	}
	i.groups = map[string]bool{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "group_id=") {
			i.groups[line] = true
		}
	}
	return i, nil
}

var (
	age     = regexp.MustCompile(`duration=([0-9.]+s)`)
	counter = regexp.MustCompile(`(duration|n_packets|n_bytes|idle_age|hard_age)=[0-9.]+s?, `)
)

// parseFlows takes a dump of flows apart: a flow without its counters, and its age.
func parseFlows(text string) (map[string]time.Duration, error) {
	flows := map[string]time.Duration{}
	for line := range strings.Lines(text) {
		m := age.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		d, err := time.ParseDuration(m[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		}
		flows[counter.ReplaceAllString(strings.TrimSpace(line), "")] = d
	}
	return flows, nil
}

// compareInstalled fails if two readings differ, and returns the age of the youngest flow in the second.
func compareInstalled(before, after installed) (youngest time.Duration, err error) {
	if !maps.Equal(before.groups, after.groups) {
		return 0, fmt.Errorf("the switch's groups changed: %d before, %d now", len(before.groups), len(after.groups))
	}
	for f, d := range after.flows {
		if _, ok := before.flows[f]; !ok {
			return 0, fmt.Errorf("a flow is new: %s", f)
		}
		if youngest == 0 || d < youngest {
			youngest = d
		}
	}
	if len(before.flows) != len(after.flows) {
		return 0, fmt.Errorf("flows are missing: %d before, %d now", len(before.flows), len(after.flows))
	}
	return youngest, nil
}
