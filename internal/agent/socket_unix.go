//go:build !windows

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
)

// listen listens on a unix socket that only root may use. It replaces the socket of an agent that has ended,
// and nothing else: a live socket, and any other file of that name, is an error.
func listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	// Of two agents that find the same dead socket, the second must not remove what the first has just made.
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := lockDir(lock, dirLockLimit); err != nil {
		return nil, err
	}
	if err := removeDead(path); err != nil {
		return nil, err
	}
	// The socket must never be open to other users, not even between its creation and a chmod. The mask
	// applies to the whole process: a file created elsewhere at this moment is closed to other users, too.
	mask := syscall.Umask(0o177)
	defer syscall.Umask(mask)
	return net.Listen("unix", path)
}

// socketRemoved reports whether a socket is not there any more.
func socketRemoved(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// dirLockLimit is how long listen waits for the lock of the socket's directory. An agent that starts holds it
// for the time of listen, in which it may wait dialLimit for the socket that it finds.
const dirLockLimit = dialLimit + 5*time.Second

// dialLimit is how long removeDead waits for an answer.
const dialLimit = 30 * time.Second

// lockDir locks the directory of the socket, in which agents with other sockets may start at the same time.
// It waits no longer than limit.
func lockDir(dir *os.File, limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", dir.Name(), err)
		case time.Now().After(deadline):
			return fmt.Errorf(
				"another program has locked %s, the directory of --socket, for %v (flock): end it, or "+
					"choose another --socket",
				dir.Name(), limit)
		}
	}
}

// removeDead removes a socket on which nothing listens. Symbolic links are not followed.
func removeDead(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if kind := info.Mode().Type(); kind != os.ModeSocket {
		return fmt.Errorf(
			"--socket %s: a %s of that name exists, and nkp replaces sockets only: remove it, or choose "+
				"another --socket",
			path, kindText(kind))
	}

	// Connecting does not wait for the other side (unix(7)): it takes long only on a node where nkp gets no
	// processor.
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	conn, err := api.Dial(ctx, path)

	switch {
	case err == nil:
		conn.Close()
		return errRunning(path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, syscall.EAGAIN): // its queue of connections is full
		return errRunning(path)
	case errors.Is(err, os.ErrNotExist):
		return nil
	}

	return fmt.Errorf(
		"--socket %s: it seems to be the socket of another program, and stays (%w): choose another --socket",
		path, err)
}

func kindText(m os.FileMode) string {
	switch m {
	case 0:
		return "regular file"
	case os.ModeDir:
		return "directory"
	case os.ModeSymlink:
		return "symbolic link"
	case os.ModeNamedPipe:
		return "named pipe"
	}
	return "device"
}

// modeDir returns the directory of modeFile: that of the socket, so that a reboot removes the file together
// with rules and flows.
func (s *Settings) modeDir() string { return filepath.Dir(s.Socket) }

func (s *Settings) makeModeDir() error { return os.MkdirAll(s.modeDir(), 0o755) }

func (s *Settings) checkModeDir() error { return nil }
