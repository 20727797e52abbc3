package agent

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/Microsoft/go-winio"

	"github.com/nkp-proxy/nkp/windows"
)

// pipePrefix is what the names of this machine's pipes begin with.
const pipePrefix = `\\.\pipe\`

// onlyAdministrators is the security descriptor of the agent's pipe: SYSTEM and Administrators may use it, nobody else, and
// nothing is inherited. Clients on other machines are refused by the pipe itself (PIPE_REJECT_REMOTE_CLIENTS).
const onlyAdministrators = "D:P(A;;GA;;;SY)(A;;GA;;;BA)"

// listen listens on a named pipe. The pipe of a dead agent is gone with it.
func listen(path string) (net.Listener, error) {
	if NewCaller(path).Running() {
		return nil, errRunning(path)
	}
	return winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: onlyAdministrators})
}

// dial connects to the agent that listens on path.
func dial(ctx context.Context, path string) (net.Conn, error) {
	return winio.DialPipeContext(ctx, path)
}

// CheckSocket says what is wrong with the name of a socket.
func CheckSocket(path string) error {
	if name, ok := strings.CutPrefix(strings.ToLower(path), pipePrefix); !ok || name == "" {
		return fmt.Errorf(`%q is not a named pipe such as %snkp`, path, pipePrefix)
	}
	return nil
}

// modeDir is where the file of the last run's modes is: beside the file that says what is nkp's in HNS.
func (s *Settings) modeDir() string {
	if s.Windows.StateFile != "" {
		return filepath.Dir(s.Windows.StateFile)
	}
	return filepath.Dir(windows.DefaultStateFile())
}

func (s *Settings) makeModeDir() error { return windows.MakeStateDir(s.modeDir()) }
