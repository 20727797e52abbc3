//go:build linux

package testbed

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Deafen has the kernel drop all that it writes to the nf_tables sockets of a process. It returns the number of sockets.
func Deafen(t testing.TB, pid int) (n int) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(process)
	files, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		number, _ := strconv.Atoi(f.Name())
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // closed meanwhile
		}
		domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		protocol, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if domain == unix.AF_NETLINK && protocol == unix.NETLINK_NETFILTER {
			filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
			err := errors.Join(
				unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &filter}),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}))
			if err != nil {
				t.Error(err)
			}
			n++
		}
		_ = unix.Close(fd)
	}
	return n
}
