//go:build linux

package packets

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// The kernel's conntrack table is full: status, services and trace --live name it, and the metrics count what was dropped. The limit
// holds in all network namespaces, so that no other test may run meanwhile.
func TestKernelConntrackFull(t *testing.T) {
	requireKernelDatapath(t)
	const file = "/proc/sys/net/netfilter/nf_conntrack_max"
	before, err := os.ReadFile(file)
	must(t, err)
	set := func(limit string) { must(t, os.WriteFile(file, []byte(strings.TrimSpace(limit)), 0o644)) }
	t.Cleanup(func() { set(string(before)) })
	c := newCluster(t, testbed.Options{})
	web := service("web", "40.0.0.1", func(s *v1.Service) { s.Spec.Selector = map[string]string{"app": "web"} })
	c.begin(web, slice(web, 8080, at(c.pods[0].IP4)))
	for range 3 { // assured entries, which do not give way; of another client, whose own namespace has a table, too
		c.keepOpen(t, c.pods[2].Host, "40.0.0.1:80")
	}
	open, err := aPod(c).DialTCP(c.ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	defer open.Close()
	answers := bufio.NewReader(open)
	heard := func() {
		_, err := answers.ReadString('\n')
		must(t, err)
	}
	heard() // the greeting
	set("3")
	b := broken{
		control: func() { // only packets of connections that have an entry pass
			must(t, open.SetDeadline(time.Now().Add(wait.Limit)))
			_, err := open.Write([]byte("still there?\n"))
			must(t, err)
			heard()
		},
		from: aPod, to: "40.0.0.1:80", err: testbed.ErrTimeout, live: true,
		status: `(?s)conntrack +table \d+ of 3 entries; failures .*dropped [1-9]\d*.*\n.*` +
			`WARNING +conntrack table \d+ of 3 entries: full, new connections to Services fail; raise the limit \(.* on the kernel datapath sysctl net\.netfilter\.nf_conntrack_max=N\)`,
		trace: `does not agree: conntrack table \d+ of 3 entries: full, so that a new connection fails\n`,
	}
	c.attempts(t)
	b.check(t, c, func() {})
	set(string(before)) // a full table keeps clients from /metrics, too
	c.eventually("the metrics", func() error {
		s, err := c.scrape()
		if err == nil && s.values[`nkp_conntrack_failures_total{reason="dropped"}`] == 0 {
			err = fmt.Errorf("%s", s.text)
		}
		return err
	})
}
