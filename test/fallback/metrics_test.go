//go:build linux

package fallback

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// What a running kube-proxy serves on /metrics in a mode, a running nkp serves in that mode too, by name, type and labels, or
// docs/metrics.md says why it does not.
func TestMetricsBesideKubeProxy(t *testing.T) {
	testbed.Linux.Require(t)
	for _, mode := range []string{"iptables", "nftables"} {
		ours := families(t, "nkp "+mode, func(c *cluster) *proxy { return c.startNKPWith("--mode", mode) })
		theirs := families(t, "kube-proxy "+mode, func(c *cluster) *proxy { return c.startKubeProxy(mode, "nf_tables") })
		if t.Failed() {
			return
		}
		lines, err := testbed.UnlikeKubeProxy("../../docs/metrics.md", ours, theirs)
		must(t, err)
		for _, line := range lines {
			t.Errorf("mode %s: %s", mode, line)
		}
	}
}

var partialSync = regexp.MustCompile(`(?m)^kubeproxy_sync_partial_proxy_rules_duration_seconds_count\{.*\} [1-9]`)

// families returns what a proxy serves on /metrics after a first sync and a change.
func families(t *testing.T, what string, start func(*cluster) *proxy) (found map[string]string) {
	t.Run(what, func(t *testing.T) {
		c := newCluster(t, 2, 2)
		p := start(c)
		c.reach(0, "")
		c.api.slice(c.sliceObject(0, c.pods[1]))
		c.follows(0, c.pods[1].Name)
		web := http.Client{Timeout: wait.Limit, Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, at string) (net.Conn, error) {
				return c.bed.Node.DialTCP(ctx, at, testbed.DialOptions{})
			},
		}}
		text, changes := "", 0
		wait.NoError(t, "a sync of a change alone", func() error {
			// A change that arrives during the first sync is part of it: further ones follow.
			c.api.slice(c.sliceObject(0, c.pods[changes%2]))
			changes++
			res, err := web.Get("http://127.0.0.1:10249/metrics")
			if err != nil {
				return err
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if text = string(body); err == nil && !partialSync.MatchString(text) {
				err = fmt.Errorf("none in\n%s", text)
			}
			return err
		})
		p.stop()
		found = testbed.MetricFamilies(text)
	})
	return found
}
