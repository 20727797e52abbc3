package api

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/Microsoft/go-winio"
	syswindows "golang.org/x/sys/windows"

	"github.com/nkp-proxy/nkp/windows/access"
)

// pipePrefix is what the names of this machine's pipes begin with.
const pipePrefix = `\\.\pipe\`

// Dial connects to the agent that listens on path. A pipe of another user is an error, so that its answers
// are not taken for nkp's.
func Dial(ctx context.Context, path string) (net.Conn, error) {
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
