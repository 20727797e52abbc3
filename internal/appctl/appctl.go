package appctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// MaxReply bounds how long an answer may be, in bytes.
const MaxReply = 64 << 20

// dialTimeout bounds the connecting; the context bounds the rest.
const dialTimeout = 5 * time.Second

// ErrTooLong tells that the daemon had more to say than MaxReply.
var ErrTooLong = errors.New("the answer is too long")

// CommandError is a command that the daemon refused.
type CommandError struct{ Command, Text string }

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %s", e.Command, strings.Join(strings.Fields(e.Text), " "))
}

// Find gives the control socket of a daemon, such as ovs-vswitchd, whose run directory is dir: DAEMON.PID.ctl, with the
// process id from DAEMON.pid. It does not tell whether anyone answers there.
func Find(dir, daemon string) (string, error) {
	file := filepath.Join(dir, daemon+".pid")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cannot tell the control socket of %s: %w", daemon, err)
	}
	pid, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return "", fmt.Errorf("cannot tell the control socket of %s: %s holds no process id", daemon, file)
	}
	return filepath.Join(dir, fmt.Sprintf("%s.%d.ctl", daemon, pid)), nil
}

type request struct {
	ID     int      `json:"id"`
	Method string   `json:"method"`
	Params []string `json:"params"`
}

type reply struct {
	Result *string `json:"result"`
	Error  *string `json:"error"`
}

// Call runs one command on the daemon that listens at path and gives what it says. It ends with the context, whatever
// the daemon does. An error of the command itself is a *CommandError.
func Call(ctx context.Context, path, command string, params ...string) (string, error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return "", fmt.Errorf("control socket %s does not answer: %w", path, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends what is under way
	defer stop()
	text, err := exchange(conn, command, params)
	var refused *CommandError
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("control socket %s, %s: %w", path, command, ctx.Err())
	case err != nil && !errors.As(err, &refused):
		return "", fmt.Errorf("control socket %s, %s: %w", path, command, err)
	}
	return text, err
}

func exchange(conn net.Conn, command string, params []string) (string, error) {
	if params == nil {
		params = []string{}
	}
	ask, err := json.Marshal(request{Method: command, Params: params})
	if err != nil {
		return "", err
	}
	if _, err := conn.Write(ask); err != nil {
		return "", err
	}
	in := &io.LimitedReader{R: conn, N: MaxReply}
	var r reply
	err = json.NewDecoder(in).Decode(&r)
	switch {
	case in.N == 0:
		return "", ErrTooLong
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "", errors.New("the daemon closed the connection without an answer")
	case err != nil:
		return "", fmt.Errorf("not a JSON-RPC answer: %w", err)
	case r.Error != nil:
		return "", &CommandError{command, *r.Error}
	case r.Result == nil:
		return "", errors.New("an answer with neither result nor error")
	}
	return *r.Result, nil
}
