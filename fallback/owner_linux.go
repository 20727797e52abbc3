package fallback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ownerWait is how long a Plane waits for another one that programs the same network namespace: one that is
// about to end. ownerPause is the pause between two looks.
const (
	ownerWait  = 10 * time.Second
	ownerPause = 100 * time.Millisecond
)

// lockDir is where only root may write. A variable for tests.
var lockDir = "/run/nkp"

// own makes this Plane the only one of its network namespace until release is called, or the process ends.
// Two would repair each other's rules without end. It is a lock file, because the kernel's own way to own a
// table deletes the table with its owner. Where there can be no file, the Plane runs nevertheless.
func (p *Plane) own(ctx context.Context) (release func(), err error) {
	unowned := func(err error) (func(), error) {
		p.opts.Log.Warn("cannot make sure that no other nkp programs this network namespace", "error", err)
		return func() {}, nil
	}
	file, err := netnsFile("lock")
	if err != nil {
		return unowned(err)
	}

	for begun := time.Now(); ; {
		lock, who, err := tryLock(file)
		switch {
		case err != nil:
			return unowned(err)
		case lock != nil:
			return func() { _, _ = os.Remove(file), lock.Close() }, nil
		case time.Since(begun) >= ownerWait:
			return nil, fmt.Errorf("another nkp (%s) programs iptables or nftables "+
				"in this network namespace already: stop it, or run no second one (%s is locked)", who, file)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(ownerPause):
		}
	}
}

// netnsFile returns the name of a file of this network namespace, whose directory exists.
func netnsFile(kind string) (string, error) {
	ns, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("netns-%d.%s", ns.Sys().(*syscall.Stat_t).Ino, kind)
	return filepath.Join(lockDir, name), os.MkdirAll(lockDir, 0o755)
}

// netnsCookie returns a number that no other network namespace has until the machine restarts, unlike that in
// netnsFile, which the next one gets; "" before Linux 5.14.
func netnsCookie() string {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return ""
	}
	return fmt.Sprint(cookie)
}

// tryLock locks a file and writes into it who has it. If another process has it, it returns no file, and who
// that is.
func tryLock(name string) (lock *os.File, who string, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if lock == nil {
			_ = f.Close()
		}
	}()

	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		text, _ := io.ReadAll(io.LimitReader(f, 100))
		return nil, strings.TrimSpace(string(text)), nil
	} else if err != nil {
		return nil, "", err
	}

	locked, err := f.Stat()
	if err != nil {
		return nil, "", err
	}
	if there, err := os.Stat(name); err != nil || !os.SameFile(there, locked) {
		return nil, "one that ends", nil // it has removed the file
	}

	if err := f.Truncate(0); err != nil {
		return nil, "", err
	}
	if _, err := fmt.Fprintf(f, "process %d\n", os.Getpid()); err != nil {
		return nil, "", err
	}
	return f, "", nil
}
