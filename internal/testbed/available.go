//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotRoot is wrapped by [Available] if the process is not root, which is the
// one reason for which a test may skip.
var ErrNotRoot = errors.New("not running as root")

// schemaFiles are where packages of Open vSwitch put the database schema.
var schemaFiles = []string{
	"/usr/share/openvswitch/vswitch.ovsschema",
	"/usr/local/share/openvswitch/vswitch.ovsschema",
}

var programs = []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", "ovs-appctl"}

// Available tells whether a bed with the switch can be built here; its error names
// everything that is missing.
func Available() error { return OVS.Available() }

// Available tells whether a bed of this plane can be built here; its error names
// everything that is missing.
func (p Plane) Available() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("testbed: %w: network namespaces and the switch need it", ErrNotRoot)
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
		if _, err := lookPath(p); err != nil {
			missing = append(missing, p+" (package openvswitch-switch)")
		}
	}
	if _, err := schema(); err != nil {
		missing = append(missing, err.Error())
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		missing = append(missing, "/dev/net/tun")
	}
	return missing
}

// lookPath finds a program in PATH or in the system directories that a plain
// user's PATH often leaves out.
func lookPath(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"} {
		if p, err := exec.LookPath(dir + "/" + name); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: not found", name)
}

func schema() (string, error) {
	for _, f := range schemaFiles {
		if _, err := os.Stat(f); err == nil {
			return f, nil
		}
	}
	return "", errors.New(schemaFiles[0])
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
