package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/Microsoft/go-winio"
	syswindows "golang.org/x/sys/windows"

	"github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/access"
)

// pipePrefix is what the names of this machine's pipes begin with.
const pipePrefix = `\\.\pipe\`

// onlyAdministrators is the security descriptor of the agent's pipe: SYSTEM and Administrators may use it, no
// other user, and nothing is inherited. Clients on other machines are refused by the pipe itself
// (PIPE_REJECT_REMOTE_CLIENTS).
const onlyAdministrators = "D:P(A;;GA;;;SY)(A;;GA;;;BA)"

// listen listens on a named pipe. The pipe of an agent ends with its process. Any user may create a pipe of
// any name; if the name is taken, the error is an errTaken.
func listen(path string) (net.Listener, error) {
	c, held := dialBriefly(path)
	if held == nil {
		c.Close()
		return nil, errRunning(path)
	}
	l, err := winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: onlyAdministrators})
	if err != nil {
		return nil, &errTaken{path, errors.Join(err, held)}
	}
	return l, nil
}

// dial connects to the agent that listens on path. A pipe of another user is an error, so that its answers
// are not taken for nkp's.
func dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := winio.DialPipeContext(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := access.CheckOwner(syswindows.Handle(c.(interface{ Fd() uintptr }).Fd())); err != nil {
		c.Close()
		return nil, fmt.Errorf("the pipe %s %w: it is not nkp's", path, err)
	}
	return c, nil
}

// CheckSocket reports what is wrong with the name of a socket.
func CheckSocket(path string) error {
	if name, ok := strings.CutPrefix(strings.ToLower(path), pipePrefix); !ok || name == "" {
		return fmt.Errorf(`%q is not a named pipe such as %snkp`, path, pipePrefix)
	}
	return nil
}

// modeDir returns the directory of modeFile: that of the file which records nkp's HNS objects.
func (s *Settings) modeDir() string {
	if s.Windows.StateFile != "" {
		return filepath.Dir(s.Windows.StateFile)
	}
	return filepath.Dir(windows.DefaultStateFile())
}

func (s *Settings) makeModeDir() error { return access.MakeDir(s.modeDir()) }

func (s *Settings) checkModeDir() error { return access.CheckDir(s.modeDir()) }

// socketRemoved returns false: a pipe has no name of its own that could be removed.
func socketRemoved(string) bool { return false }
