//go:build linux

package packets

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// olderSwitch puts something between nkp and the switch that refuses NXT_CT_FLUSH, as Open vSwitch before 3.1 does, and
// gives the target to reach the switch by.
func olderSwitch(t *testing.T, c *cluster) string {
	t.Helper()
	path := filepath.Join(c.RunDir, "older.mgmt")
	proxy, err := ofctrltest.Intercept(path, c.Mgmt(c.Bridge), ofctrltest.Handlers{
		FromController: func(p *ofctrltest.Pair, m ofctrltest.Message) {
			const ctFlush = 0x2320<<32 | 32 // of vendor NX, subtype 32
			if m.Type() != ofctrltest.Experimenter || binary.BigEndian.Uint64(m.Body()) != ctFlush {
				p.Switch.Write(m)
				return
			}
			p.Controller.Write(ofctrltest.NewMessage(ofctrltest.Error, m.XID(), 0, 1, 0, 4)) // OFPBRC_BAD_SUBTYPE
		},
		FromSwitch: func(p *ofctrltest.Pair, m ofctrltest.Message) { p.Controller.Write(m) },
	})
	must(t, err)
	t.Cleanup(func() { proxy.Close() })
	return "unix:" + path
}

// lacks returns what status says that the switch lacks, and its warnings.
func (c *cluster) lacks(t *testing.T) (lacks, warnings string) {
	t.Helper()
	s := c.status(t)
	return strings.Join(s.Bridge.Lacks, "\n"), strings.Join(s.Warnings, "\n")
}

// With a switch that cannot forget connections over OpenFlow, nkp forgets them over the control socket.
func TestStaleUDPBefore31(t *testing.T) {
	nightly.Only(t, "TestStaleUDP has a present switch")
	c := newCluster(t, testbed.Options{})
	c.flags = append(c.flags, "--openflow", olderSwitch(t, c))
	staleUDP(t, c)
	if lacks, warnings := c.lacks(t); !strings.Contains(lacks, "control socket") || strings.Contains(warnings, "conntrack entries") {
		t.Errorf("status says that the switch lacks %q, and warns %q", lacks, warnings)
	}
}

// Where the control socket cannot be reached either, status says what that means; Services are served all the same.
func TestNothingForgets(t *testing.T) {
	nightly.Only(t, "a rare combination")
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{})
	c.runsOn = c.External // where no kernel's table is the switch's
	must(t, os.Remove(filepath.Join(c.RunDir, "ovs-vswitchd.pid")))
	c.flags = append(c.flags, "--openflow", olderSwitch(t, c))
	c.begin(s, slice(s, 8080, at(c.pods[1].IP4)))
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.1:80", c.pods[1].Name)
	lacks, warnings := c.lacks(t)
	if !strings.Contains(warnings, "lacks deleting conntrack entries over OpenFlow") || !strings.Contains(warnings, "ovs-vswitchd.pid") {
		t.Errorf("status warns %q", warnings)
	}
	if strings.Contains(lacks, "deleting conntrack entries") {
		t.Errorf("status says that the switch lacks %q, as if that were mended", lacks)
	}
}
