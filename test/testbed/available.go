//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

var programs = []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", "ovs-appctl"}

// Available reports whether a bed with the switch can be built here; its error names
// everything that is missing.
func Available() error { return OVS.Available() }

// Available reports whether a bed of this plane can be built here; its error names
// everything that is missing.
func (p Plane) Available() error {
	if os.Geteuid() != 0 {
		return errors.New("testbed: not running as root: network namespaces and the switch need it")
	}
	var missing []string
	switch p {
	case OVS:
		missing = missingForSwitch()
	case Linux:
	default:
		return fmt.Errorf("testbed: there is no plane %q", p)
	}
	if err := tryNamespace(); err != nil {
		missing = append(missing, "network namespaces: "+err.Error())
	}
	if len(missing) > 0 {
		return errors.New("testbed: missing: " + strings.Join(missing, ", "))
	}
	return nil
}

// missingForSwitch names what a private Open vSwitch needs and is not here.
func missingForSwitch() (missing []string) {
	for _, p := range programs {
		if _, err := lookPath(otherSwitch, p); err != nil {
			missing = append(missing, err.Error()+" (package openvswitch-switch)")
		}
	}
	if _, err := schema(otherSwitch); err != nil {
		missing = append(missing, err.Error())
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		missing = append(missing, "/dev/net/tun")
	}
	return missing
}

// tryNamespace makes a namespace on a thread that ends with its goroutine.
func tryNamespace() error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread goes with the goroutine
		done <- unix.Unshare(unix.CLONE_NEWNET)
	}()
	return <-done
}
