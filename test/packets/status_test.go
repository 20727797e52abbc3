//go:build linux

package packets

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The exit status of nkp status is 0 in step, 1 not, or with --strict if anything is wrong, and 2 if no agent answers. --wait waits for 0.
func TestStatusExit(t *testing.T) {
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{})
	c.put(s, slice(s, 8080, at(c.pods[1].IP4)))
	expect := func(want int, says string, args ...string) {
		t.Helper()
		out, errOut, status := c.nkp(append([]string{"status", "--socket", c.socket(), "--ovsdb", c.DB()}, args...)...)
		if status != want || !strings.Contains(out+errOut, says) {
			t.Errorf("status %q ends with %d, want %d: %s%s", args, status, want, out, errOut)
		}
	}
	expect(2, "no nkp answers")
	expect(2, "no nkp answers", "--wait", "--timeout", "10ms", "-o", "json")
	expect(2, "--wait ends", "--wait", "--watch")
	expect(2, "--timeout is without effect", "--timeout", "1s")
	expect(2, "--strict is without effect", "--strict", "--watch")

	waited := make(chan error, 1)
	go func() {
		out, errOut, status := c.nkp("status", "--socket", c.socket(), "--ovsdb", c.DB(), "--wait")
		if status != 0 || !strings.Contains(out, "holds what it should") {
			waited <- fmt.Errorf("status --wait before the start ends with %d: %s%s", status, out, errOut)
		}
		close(waited)
	}()
	c.run()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	c.settle()
	expect(0, "holds what it should", "--strict")
	_, err := c.Ofctl("add-flow", c.Bridge, "cookie=0x77,table=2,priority=999,udp,tp_dst=9,actions=drop")
	must(t, err)
	c.statusSays("flows of other owners")
	expect(0, "flows of other owners")
	expect(1, "flows of other owners", "--strict")
	expect(1, "flows of other owners", "--strict", "--wait", "--timeout", "10ms")
}
