//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

var (
	metricType  = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	metricLabel = regexp.MustCompile(`[{,](\w+)="`)
	notServed   = regexp.MustCompile("(?m)^\\| `(\\w+)(\\*?)` \\|")
)

// MetricFamilies returns the type and the labels of each metric of an answer of /metrics, by name. Metrics without a series are not in
// such an answer.
func MetricFamilies(text string) map[string]string {
	found := map[string]string{}
	for _, m := range metricType.FindAllStringSubmatch(text, -1) {
		labels := map[string]bool{}
		series := regexp.MustCompile(fmt.Sprintf(`(?m)^%s(_bucket)?(\{.*\}) \S+$`, m[1]))
		for _, s := range series.FindAllStringSubmatch(text, -1) {
			for _, l := range metricLabel.FindAllStringSubmatch(s[2], -1) {
				if l[1] != "le" && l[1] != "quantile" {
					labels[l[1]] = true
				}
			}
		}
		found[m[1]] = strings.Join(append([]string{m[2]}, slices.Sorted(maps.Keys(labels))...), " ")
	}
	return found
}

// UnlikeKubeProxy returns a line for each metric that kube-proxy serves and nkp does not, or with another type or other labels, unless
// the document, docs/metrics.md, says why. Both maps are of MetricFamilies.
func UnlikeKubeProxy(document string, ours, theirs map[string]string) (lines []string, err error) {
	docs, err := os.ReadFile(document)
	if err != nil {
		return nil, err
	}
	_, section, ok := strings.Cut(string(docs), "## What kube-proxy has and nkp has not")
	if !ok {
		return nil, errors.New(document + " has no section of what is not served")
	}
	rows := notServed.FindAllStringSubmatch(section, -1)
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		listed := slices.ContainsFunc(rows, func(m []string) bool {
			return m[1] == name || m[2] != "" && strings.HasPrefix(name, m[1])
		})
		if ours[name] != theirs[name] && !listed {
			lines = append(lines, fmt.Sprintf("%s: kube-proxy serves %q, nkp %q", name, theirs[name], ours[name]))
		}
	}
	return lines, nil
}
