//go:build linux

package semantics

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/test/inforce"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// modeFlags select nkp's data plane.
func (c *cluster) modeFlags() []string {
	if c.plane.bed.Plane == testbed.Linux {
		return []string{"--mode", c.plane.name}
	}
	return []string{"--mode", "ovs", "--ovsdb", c.DB(), "--bridge", c.Bridge, "--gateway-mac", testbed.GatewayMAC}
}

func nkpCommand(c *cluster, flags []string) []string {
	return testbed.Wrapped(append(append([]string{c.bin, "run", "--socket", c.socket(), "--log-level", "debug"}, flags...), c.nkpFlags()...)...)
}

// nkpFlags are the flags that every command of nkp shares here.
func (c *cluster) nkpFlags() []string {
	return slices.Concat([]string{"--manifests", c.manifest, "--hostname-override", c.nodeName}, c.modeFlags(), c.plane.flags, c.flags, c.ownFlags)
}

// nkpInStep returns nil once nkp has programmed the manifests, and `nkp diff` finds what they call for.
func nkpInStep(c *cluster) error {
	if err := inforce.Manifests(c.t.Context(), c.socket(), c.manifest); err != nil {
		return err
	}
	out, status := c.run(append([]string{c.bin, "diff", "--socket", c.socket()}, c.nkpFlags()...)...)
	if status != 0 {
		return fmt.Errorf("nkp diff ends with %d: %s", status, tail(out, 3000))
	}
	return nil
}

func nkpCleanup(c *cluster, flags ...string) error {
	out, status := c.run(append([]string{c.bin, "cleanup", "--socket", c.socket()}, flags...)...)
	if status != 0 {
		return fmt.Errorf("nkp cleanup ends with %d: %s", status, tail(out, 3000))
	}
	return nil
}
