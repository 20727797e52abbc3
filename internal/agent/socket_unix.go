//go:build !windows

package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// listen listens on a unix socket that only root may use. One that a dead agent left behind is taken over.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if NewCaller(path).Running() {
		return nil, errRunning(path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// The socket must never be open to others, not even between its making and a chmod. The mask is the whole process's: a
	// file that is made elsewhere at this very moment is closed to others too.
	mask := syscall.Umask(0o177)
	defer syscall.Umask(mask)
	return net.Listen("unix", path)
}

// dial connects to the agent that listens on path.
func dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// CheckSocket says what is wrong with the name of a socket.
func CheckSocket(string) error { return nil }

// modeDir is where the file of the last run's modes is: beside the socket, where it goes with the next boot, as rules and
// flows do.
func (s *Settings) modeDir() string { return filepath.Dir(s.Socket) }

func (s *Settings) makeModeDir() error { return os.MkdirAll(s.modeDir(), 0o755) }
