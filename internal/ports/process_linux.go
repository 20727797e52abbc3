package ports

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// ownSockets returns the inodes of this process's sockets.
func ownSockets() (map[uint32]bool, error) {
	own := map[uint32]bool{}
	self, err := procfs.Self()
	if err == nil {
		err = eachSocket(self, func(inode uint32) { own[inode] = true })
	}
	if err != nil {
		return nil, fmt.Errorf("list own sockets: %w", err)
	}
	return own, nil
}

// owners returns the processes that hold these sockets. It reads the descriptors of every process, which
// takes tens of milliseconds on a busy node, so it is for the few sockets that a Service hides. If several
// processes hold a socket, the first one that is not init counts, because init holds sockets for others.
func owners(inodes map[uint32]bool) map[uint32]Process {
	found := map[uint32]Process{}
	if len(inodes) == 0 {
		return found
	}

	all, _ := procfs.AllProcs() // without /proc, none is known
	slices.SortFunc(all, func(a, b procfs.Proc) int { return a.PID - b.PID })
	for _, p := range all {
		// A process that has ended, or that nkp may not read, counts as holding none.
		_ = eachSocket(p, func(inode uint32) {
			if inodes[inode] && found[inode].PID <= 1 {
				name, err := p.Comm()
				if err != nil {
					name = "?"
				}
				found[inode] = Process{p.PID, name}
			}
		})
	}
	return found
}

// eachSocket calls f with the inode of every socket among the descriptors of a process.
func eachSocket(p procfs.Proc, f func(inode uint32)) error {
	targets, err := p.FileDescriptorTargets()
	for _, t := range targets {
		if inode, ok := socketInode(t); ok {
			f(inode)
		}
	}
	return err
}

// socketInode reads a link such as socket:[12345].
func socketInode(target string) (uint32, bool) {
	text, ok := strings.CutPrefix(target, "socket:[")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32)
	return uint32(n), err == nil
}
