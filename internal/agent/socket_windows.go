package agent

import (
	"errors"
	"net"
	"path/filepath"

	"github.com/Microsoft/go-winio"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/windows"
	"github.com/nkp-proxy/nkp/windows/access"
)

// onlyAdministrators is the security descriptor of the agent's pipe: SYSTEM and Administrators may use it, no
// other user, and nothing is inherited. Clients on other machines are refused by the pipe itself
// (PIPE_REJECT_REMOTE_CLIENTS).
const onlyAdministrators = "D:P(A;;GA;;;SY)(A;;GA;;;BA)"

// listen listens on a named pipe. The pipe of an agent ends with its process. Any user may create a pipe of
// any name; if the name is taken, the error is an errTaken.
func listen(path string) (net.Listener, error) {
	held := api.Listens(path)
	if held == nil {
		return nil, errRunning(path)
	}
	l, err := winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: onlyAdministrators})
	if err != nil {
		return nil, &errTaken{path, errors.Join(err, held)}
	}
	return l, nil
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
