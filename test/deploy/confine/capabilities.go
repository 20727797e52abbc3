package main

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilities are those that a unit of this project may keep (capabilities(7)).
var capabilities = map[string]uintptr{
	"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW,
	"CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYS_MODULE": unix.CAP_SYS_MODULE,
}

// confineCapabilities bounds what the command can have. As root it gets all of the bounding set at exec.
func (s service) confineCapabilities() error {
	keep := map[uintptr]bool{}
	for _, name := range s.words("CapabilityBoundingSet") {
		c, ok := capabilities[name]
		if !ok {
			return fmt.Errorf("CapabilityBoundingSet=%s is not known here", strings.Join(s["CapabilityBoundingSet"], " "))
		}
		keep[c] = true
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keep[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if s.on("NoNewPrivileges") {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no_new_privs: %w", err)
		}
	}
	if s.is("UMask", "0077") {
		unix.Umask(0o077)
	}
	return nil
}
