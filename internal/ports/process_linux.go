package ports

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ownSockets returns the inodes of this process's sockets.
func ownSockets() (map[uint32]bool, error) {
	own := map[uint32]bool{}
	if err := eachSocket("/proc/self/fd", func(inode uint32) { own[inode] = true }); err != nil {
		return nil, fmt.Errorf("list own sockets: %w", err)
	}
	return own, nil
}

// owners returns the processes that hold these sockets. It reads the descriptors of every process, which takes tens of
// milliseconds on a busy node, so it is for the few sockets that a Service hides. If several processes hold a socket, the
// first one that is not init counts, because init holds sockets for others.
func owners(inodes map[uint32]bool) map[uint32]Process {
	found := map[uint32]Process{}
	if len(inodes) == 0 {
		return found
	}
	for _, pid := range processes() {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		// A process that has ended, or that nkp may not read, counts as holding none.
		_ = eachSocket(dir+"/fd", func(inode uint32) {
			if p := found[inode]; inodes[inode] && p.PID <= 1 {
				found[inode] = Process{pid, comm(dir)}
			}
		})
	}
	return found
}

// processes returns the PIDs of all processes, ascending.
func processes() (pids []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // those that were read count
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// eachSocket calls f with the inode of every socket among the descriptors of a process.
func eachSocket(fds string, f func(inode uint32)) error {
	dir, err := os.Open(fds)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		target, err := os.Readlink(filepath.Join(fds, n))
		if errors.Is(err, fs.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return err
		}
		if inode, ok := socketInode(target); ok {
			f(inode)
		}
	}
	return nil
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

// comm returns the name of a process.
func comm(dir string) string {
	data, err := os.ReadFile(dir + "/comm")
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(data))
}
