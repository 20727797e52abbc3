//go:build linux

package packets

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// What an operator gets wrong on a node says what fails and what to do, and before "serving Services" where it is
// known by then. Services are served all the same.
func TestMistakesAreNamed(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	_, err := c.Vsctl("add-port", c.Bridge, "spare1", "--", "set", "Interface", "spare1", "type=internal", "--",
		"add-port", c.Bridge, "spare2", "--", "set", "Interface", "spare2", "type=internal", "--",
		"del-port", "spare1", "--", "del-port", "spare2", "--", "add-bond", c.Bridge, "bond0", "spare1", "spare2", "--",
		"set", "Interface", "spare1", "type=internal", "--", "set", "Interface", "spare2", "type=internal")
	must(t, err)
	c.servePods(t)
	web := service("web", "40.0.0.1", func(s *v1.Service) {
		s.Annotations = map[string]string{"nkp-proxy.github.io/wieghts": "10.0.0.11=3", "example.com/weights": "1"}
	})
	c.put(web, slice(web, 8080, at(c.pods[1].IP4)))

	// An uplink that is not there, and one that is a bond of the switch's.
	for name, says := range map[string]string{
		"eth9":  `no uplink: bridge br-int has no port "eth9"`,
		"bond0": "has bond0 as a bond of spare1, spare2, which are ports of their own to OpenFlow (a bond of the kernel's",
	} {
		c.flags = []string{"--uplink-port", name}
		c.run()
		c.settle()
		log := strings.ReplaceAll(c.agent.Log.String(), `\"`, `"`)
		before, _, serving := strings.Cut(log, `msg="serving Services"`)
		for _, want := range []string{says, "pass --uplink-port, ports here: uplink (1), spare"} {
			if !serving || !strings.Contains(before, want) {
				t.Errorf("--uplink-port %s: before it serves, the log lacks %q:\n%s", name, want, before)
			}
		}
		if _, err := c.pods[0].Ask(t.Context(), "tcp", "40.0.0.1:80"); err != nil {
			t.Errorf("--uplink-port %s: %v", name, err)
		}
		must(t, c.agent.Cmd.Process.Signal(os.Interrupt))
		<-c.agent.Done
	}

	c.flags = nil

	// An annotation that nkp does not have.
	c.run()
	c.settle()
	c.statusSays("nkp-proxy.github.io/wieghts", "has no effect: nkp has no annotation of this name; those of Services are nkp-proxy.github.io/weights")
	c.statusMatches(false, "example.com/weights")

	// A second nkp on the node does nothing.
	_, stderr, status := c.nkp(slices.Concat([]string{"run", "--socket", c.socket()}, c.common())...)
	if want := "another nkp is running on this node, or another program listens on --socket " + c.socket() + ": stop it first"; status != 1 ||
		!strings.Contains(stderr, want) || strings.Contains(stderr, "serving Services") {
		t.Errorf("a second nkp: status %d: %s", status, stderr)
	}

	// A socket that was removed comes back.
	must(t, os.Remove(c.socket()))
	c.eventually("nkp answers on its socket again", func() error {
		if _, stderr, status := c.nkp("status", "--socket", c.socket()); status != 0 {
			return fmt.Errorf("status %d: %s", status, stderr)
		}
		return nil
	})
	c.logSays("the socket was removed: no command was answered since; it is made again")
}
