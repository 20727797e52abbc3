//go:build linux

package packets

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// Status and metrics show how full the conntrack table is. While the switch does not answer it is not known, and metrics leave it out.
func TestConntrackUsage(t *testing.T) {
	nightly.Only(t, "the situations of TestBrokenSituations show a full zone")
	web := service("web", "40.0.0.1")
	c := start(t, web)
	c.limitConntrack(t, "dpctl/ct-set-limits", "zone=1002,limit=7")
	usage := func(what string, ok func(u *dpctl.Usage) bool) {
		t.Helper()
		c.awaitStatus(t, what, func(s *api.Status) bool { return s.Conntrack != nil && ok(s.Conntrack) })
	}
	usage("the usage", func(u *dpctl.Usage) bool {
		return u.Table != nil && u.Table.Limit == 3_000_000 && u.NotKnown == "" &&
			slices.Equal(u.Zones, []dpctl.Fill{{Zone: 1002, Limit: 7}})
	})
	c.scrapeUntil(map[string]float64{
		`nkp_conntrack_limit{zone="all"}`: 3_000_000, `nkp_conntrack_limit{zone="1002"}`: 7, `nkp_conntrack_entries{zone="1002"}`: 0,
	})
	c.scrapeUntil(map[string]float64{`nkp_conntrack_failures_total{reason="table_full"}`: 0, `nkp_megaflows_refused_total`: 0})
	must(t, c.PauseVswitchd(true))
	usage("a switch that does not answer", func(u *dpctl.Usage) bool {
		return u.Table == nil && len(u.Zones) == 0 && u.NotKnown == "ovs-vswitchd does not answer in time"
	})
	out, _, _ := c.nkp("status", "--socket", c.socket())
	says(t, "status", out, `conntrack +not known: ovs-vswitchd does not answer in time\nmegaflows +not known: ovs-vswitchd does not answer in time\n`)
	s, err := c.scrape()
	must(t, err)
	if s.serves("nkp_conntrack_limit") || s.serves("nkp_conntrack_entries") || s.serves("nkp_conntrack_failures_total") || s.serves("nkp_megaflows") {
		t.Errorf("metrics of a switch that does not answer:\n%s", s.text)
	}
	must(t, c.PauseVswitchd(false))
	usage("the switch answers again", func(u *dpctl.Usage) bool { return u.NotKnown == "" })
}

// Status and metrics show how full the datapath's cache of flows is, and warn near the limit.
func TestMegaflows(t *testing.T) {
	nightly.Only(t, "the cache fills up seldom; TestConntrackUsage is the same for connections")
	c := start(t, service("web", "40.0.0.1"))
	_, err := c.Vsctl("set", "Open_vSwitch", ".", "other_config:flow-limit=20")
	must(t, err)
	// A cached flow for each source port. As others have flows in table 0, those decide on ARP, too.
	_, err = c.Ofctl("add-flow", c.Bridge, "cookie=0x66,priority=1,actions=NORMAL")
	must(t, err)
	_, err = c.Ofctl("add-flow", c.Bridge, "cookie=0x66,priority=9000,udp,in_port=12,tp_dst=9,actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],output:11")
	must(t, err)
	c.eventually("status and metrics", func() error {
		for port := range 100 {
			conn, err := c.pods[1].DialUDP(c.ctx, "10.0.0.11:9", testbed.DialOptions{LocalPort: 20000 + port})
			must(t, err)
			_, _ = conn.Write([]byte("?")) // the answer is an ICMP error
			conn.Close()
		}
		out, _, _ := c.nkp("status", "--socket", c.socket())
		for _, want := range []string{`megaflows +\d+ of 20 cached flows; the limit kept out [1-9]\d* since ovs-vswitchd started\n`,
			`WARNING +the datapath caches \d+ flows of at most 20 at present: each packet beyond goes through ovs-vswitchd`} {
			if !regexp.MustCompile(want).MatchString(out) {
				return fmt.Errorf("status does not say %q:\n%s", want, out)
			}
		}
		s, err := c.scrape()
		if err == nil && (s.values["nkp_megaflow_limit"] != 20 || s.values["nkp_megaflows"] < 16 || s.values["nkp_megaflows_refused_total"] == 0) {
			err = fmt.Errorf("%s", s.text)
		}
		return err
	})
}
