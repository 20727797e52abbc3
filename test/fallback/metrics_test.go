//go:build linux

package fallback

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// What a running kube-proxy serves on /metrics in a mode, a running nkp serves in that mode too, by name, type and labels, or
// docs/metrics.md says why it does not.
func TestMetricsBesideKubeProxy(t *testing.T) {
	testbed.Linux.Require(t)
	docs, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(docs), "## What kube-proxy has and nkp has not")
	if !ok {
		t.Fatal("docs/metrics.md has no section of what is not served")
	}
	listed := func(name string) bool {
		return slices.ContainsFunc(notServed.FindAllStringSubmatch(section, -1), func(m []string) bool {
			return m[1] == name || m[2] != "" && strings.HasPrefix(name, m[1])
		})
	}
	for _, mode := range []string{"iptables", "nftables"} {
		ours := families(t, "nkp "+mode, func(c *cluster) *proxy { return c.startNKPWith("--mode", mode) })
		theirs := families(t, "kube-proxy "+mode, func(c *cluster) *proxy { return c.startKubeProxy(mode, "nf_tables") })
		if t.Failed() {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(theirs)) {
			if ours[name] != theirs[name] && !listed(name) {
				t.Errorf("%s: kube-proxy in mode %s serves %q, nkp %q", name, mode, theirs[name], ours[name])
			}
		}
	}
}

var (
	metricType  = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	notServed   = regexp.MustCompile("(?m)^\\| `(\\w+)(\\*?)` \\|")
	partialSync = regexp.MustCompile(`(?m)^kubeproxy_sync_partial_proxy_rules_duration_seconds_count\{.*\} [1-9]`)
	metricLabel = regexp.MustCompile(`[{,](\w+)="`)
)

// families returns what a proxy serves on /metrics after a first sync and a change: its type and labels, by name.
func families(t *testing.T, what string, start func(*cluster) *proxy) (found map[string]string) {
	t.Run(what, func(t *testing.T) {
		c := newCluster(t, 2, 2)
		p := start(c)
		c.reach(0, "", 60*time.Second)
		c.api.slice(c.sliceObject(0, c.pods[1]))
		c.reachOften(0, c.pods[1].Name, 5, 30*time.Second)
		text := ""
		// A change that arrives during the first sync is part of it: further ones follow.
		for i, end := 0, time.Now().Add(testbed.Patient(30*time.Second)); !partialSync.MatchString(text); time.Sleep(100 * time.Millisecond) {
			var err error
			c.api.slice(c.sliceObject(0, c.pods[i%2]))
			i++
			if text, err = c.bed.Node.Exec(t.Context(), "curl", "-sS", "--max-time", "10", "http://127.0.0.1:10249/metrics"); err != nil {
				t.Fatal(err)
			} else if time.Now().After(end) {
				t.Fatalf("no sync of a change in\n%s", text)
			}
		}
		p.stop()
		found = map[string]string{}
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
	})
	return found
}
