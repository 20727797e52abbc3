// Command confine runs a program under the restrictions of a systemd unit, where systemd is not there to do it: with the
// unit's capabilities, file system and system calls.
//
//	confine -unit FILE [-rw DIR]... COMMAND [ARGUMENT]...
//	confine -root DIR [-capability NAME]... COMMAND [ARGUMENT]...
//
// It reads the same file as systemd, so that what is tested and what ships cannot differ, and refuses a unit with a
// restriction that it neither applies nor lists as harmless to leave out (known in unit.go). -rw names directories
// that stay as they are: what a test has in /tmp. The network namespace stays; the command takes confine's place (exec).
// With -root it is what a container runtime does last: DIR becomes the root directory, and all capabilities go but those
// named.
//
// It is a tool of tests. Linux only, as root.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "confine:", err)
		os.Exit(125)
	}
}

const usage = `usage: confine -unit FILE [-rw DIR]... COMMAND [ARGUMENT]...
       confine -root DIR [-capability NAME]... COMMAND [ARGUMENT]...`

func run(args []string) error {
	options := map[string][]string{}
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		options[args[0]] = append(options[args[0]], args[1])
		args = args[2:]
	}
	unit, root := options["-unit"], options["-root"]
	if len(args) == 0 || len(unit)+len(root) != 1 {
		//lint:ignore ST1005 it is a text of lines
		return errors.New(usage)
	}
	runtime.LockOSThread() // all that follows is of this thread, and the command's after exec
	if len(root) > 0 {
		return inContainer(root[0], options["-capability"], args)
	}
	return underUnit(unit[0], options["-rw"], args)
}

// underUnit becomes the command, under a unit's restrictions.
func underUnit(file string, keep, args []string) error {
	u, err := readUnit(file)
	if err != nil {
		return err
	}
	calls, err := u.systemCalls() // runs systemd-analyze, which it could not later
	if err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return u.confineFiles(append(keep, path)) },
		u.confineCapabilities,
		func() error { return u.confineCalls(calls) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return syscall.Exec(path, args, os.Environ())
}

// inContainer becomes the command, below another root directory.
func inContainer(root string, capabilities, args []string) error {
	if err := syscall.Chroot(root); err != nil {
		return fmt.Errorf("chroot %s: %w", root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	s := service{"CapabilityBoundingSet": capabilities, "NoNewPrivileges": {"yes"}}
	if err := s.confineCapabilities(); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, nil)
}
