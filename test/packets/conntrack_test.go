//go:build linux

package packets

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Status and metrics show how full the conntrack table is. While the switch does not answer it is not known, and metrics leave it out.
func TestConntrackUsage(t *testing.T) {
	t.Parallel()
	web := service("web", "40.0.0.1")
	c := start(t, web)
	c.limitConntrack(t, "dpctl/ct-set-limits", "zone=1002,limit=7")
	usage := func() (u dpctl.Usage, err error) {
		out, errOut, _ := c.nkp("status", "-o", "json", "--socket", c.socket())
		var s agent.Status
		if err := json.Unmarshal([]byte(out), &s); err != nil || s.Status == nil || s.Conntrack == nil {
			return u, fmt.Errorf("%w: %s%s", err, out, errOut)
		}
		return *s.Conntrack, nil
	}
	c.eventually("the usage", func() error {
		u, err := usage()
		if err == nil && (u.Table == nil || u.Table.Limit != 3_000_000 || len(u.Zones) != 1 || u.Zones[0] != dpctl.Fill{Zone: 1002, Limit: 7} || u.NotKnown != "") {
			err = fmt.Errorf("%+v", u)
		}
		return err
	})
	c.scrapeUntil(map[string]float64{
		`nkp_conntrack_limit{zone="all"}`: 3_000_000, `nkp_conntrack_limit{zone="1002"}`: 7, `nkp_conntrack_entries{zone="1002"}`: 0,
	})
	must(t, c.PauseVswitchd(true))
	c.eventually("a switch that does not answer", func() error {
		u, err := usage()
		if err == nil && (u.Table != nil || len(u.Zones) > 0 || u.NotKnown != "ovs-vswitchd does not answer in time") {
			err = fmt.Errorf("%+v", u)
		}
		return err
	})
	out, _, _ := c.nkp("status", "--socket", c.socket())
	if !regexp.MustCompile(`conntrack +not known: ovs-vswitchd does not answer in time\n`).MatchString(out) {
		t.Error(out)
	}
	s, err := c.scrape()
	must(t, err)
	if s.serves("nkp_conntrack_limit") || s.serves("nkp_conntrack_entries") {
		t.Errorf("metrics of a switch that does not answer:\n%s", s.text)
	}
	must(t, c.PauseVswitchd(false))
	c.eventually("the switch answers again", func() error {
		u, err := usage()
		if err == nil && u.NotKnown != "" {
			err = fmt.Errorf("%+v", u)
		}
		return err
	})
}

// With iptables the kernel's table shows an endpoint that does not answer.
func TestOutcomesInTheKernel(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", "iptables")
	web := service("web", "40.0.0.1")
	c.put(web, slice(web, 8080, at(c.pods[0].IP4)))
	c.run()
	c.settle()
	_, err := c.pods[0].Exec(c.ctx, "iptables", "-A", "INPUT", "-p", "tcp", "-j", "DROP")
	must(t, err)
	if _, err := c.pods[1].Ask(c.ctx, "tcp", "40.0.0.1:80"); !errors.Is(err, testbed.ErrTimeout) {
		t.Fatal(err)
	}
	out, errOut, _ := c.nkp("services", "default/web", "--socket", c.socket())
	if !regexp.MustCompile(`PROBLEM: endpoint 10\.0\.0\.11:8080: TCP connections in the conntrack table: 0 answered, 1 without answer, 0 refused\n`).MatchString(out) {
		t.Errorf("%s%s", out, errOut)
	}
}
