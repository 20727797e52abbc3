//go:build linux

package packets

import (
	"fmt"
	"testing"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// canaryPassed waits until canaries of both families have passed n more times.
func (c *cluster) canaryPassed(t *testing.T, n uint64) {
	t.Helper()
	before := map[string]uint64{}
	for _, v := range c.status(t).Canary {
		before[v.Plane+v.Family] = v.Sent.Passed
	}
	c.awaitStatus(t, "canaries that pass", func(s *agent.Status) bool {
		for _, v := range s.Canary {
			if v.Fault != "" || v.Sent.Passed < before[v.Plane+v.Family]+n {
				return false
			}
		}
		return len(s.Canary) > 0
	})
}

// On a node without Services canaries of both families pass the bridge, leave no conntrack entry, and count for no Service; nothing of
// them leaves by a port.
func TestCanary(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	outside, pod := listen(t, c.External), listen(t, c.pods[0].Host)
	c.begin()
	c.canaryPassed(t, 1)
	s := c.status(t)
	t.Log(fmt.Sprintf("%+v", s.Canary))
	for _, ip := range []string{"169.254.110.112", "169.254.110.113", "fd6e:6b70:6e6b::70", "fd6e:6b70:6e6b::71"} {
		for _, tap := range []*tap{outside, pod} {
			if x := tap.of(t, ip); x != (traffic{}) {
				t.Errorf("%s left the bridge: %+v", ip, x)
			}
		}
	}
	out, err := c.Appctl("dpctl/dump-conntrack")
	must(t, err)
	t.Log(out)
	if err := c.differs(); err != nil {
		t.Error(err)
	}
	txt, _, _ := c.nkp("status", "--socket", c.socket())
	t.Log(txt)
}
