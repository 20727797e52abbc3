//go:build linux

package packets

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// The meter is back as soon as nkp is connected to a switch that was restarted, before it has read a flow: ovs-ctl restores the flows
// of all owners in one bundle, which fails while a meter is missing.
func TestMeterBeforeReadBack(t *testing.T) {
	nightly.Only(t, "a rare order of messages")
	c := newCluster(t, testbed.Options{})
	var held atomic.Bool // no count and no list of flows or groups is answered
	path := filepath.Join(c.RunDir, "held.mgmt")
	proxy, err := ofctrltest.Intercept(path, c.Mgmt(c.Bridge), ofctrltest.Handlers{
		FromController: func(p *ofctrltest.Pair, m ofctrltest.Message) {
			if held.Load() && m.Type() == ofctrltest.MultipartRequest {
				switch m.Body()[1] {
				case ofctrltest.FlowDesc, ofctrltest.Aggregate, ofctrltest.GroupDesc:
					return
				}
			}
			p.Switch.Write(m)
		},
		FromSwitch: func(p *ofctrltest.Pair, m ofctrltest.Message) { p.Controller.Write(m) },
	})
	must(t, err)
	t.Cleanup(func() { proxy.Close() })
	c.flags = append(c.flags, "--openflow", "unix:"+path)
	c.put(service("web", "40.0.0.1"))
	c.run()
	c.settle()
	meters := func() string {
		out, err := c.Ofctl("dump-meters", c.Bridge)
		must(t, err)
		return out
	}
	meter := fmt.Sprintf("meter=%d ", 0x6e6b)
	if !strings.Contains(meters(), meter) {
		t.Fatalf("no meter at first:\n%s", meters())
	}
	held.Store(true)
	c.KillVswitchd()
	must(t, c.StartVswitchd())
	c.eventually("the meter after the switch's restart", func() error {
		if out := meters(); !strings.Contains(out, meter) {
			return fmt.Errorf("meters:\n%s", out)
		}
		return nil
	})
	if flows, err := c.Ofctl("dump-flows", c.Bridge); err != nil || strings.Contains(flows, "cookie=0x6e6b700") {
		t.Errorf("flows before a read-back: %v\n%s", err, flows)
	}
	held.Store(false)
	proxy.Cut()
	c.settle()
}
