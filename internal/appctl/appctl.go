package appctl

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// ErrTooLong reports a reply longer than MaxReply.
var ErrTooLong = errors.New("the answer is too long")

// CommandError is a command that the daemon refused.
type CommandError struct{ Command, Text string }

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %s", e.Command, strings.Join(strings.Fields(e.Text), " "))
}

// Find returns the control socket of a daemon, such as ovs-vswitchd, whose run directory is dir: DAEMON.PID.ctl, with the
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

// Call runs one command on the daemon that listens at path and returns its reply. It ends with the context, whatever
// the daemon does. An error of the command itself is a *CommandError.
func Call(ctx context.Context, path, command string, params ...string) (text string, err error) {
	each := func(_ int, t string, refused *CommandError) {
		if text = t; refused != nil {
			err = refused
		}
	}
	if broken := Each(ctx, path, command, [][]string{params}, each); broken != nil {
		return "", broken
	}
	return text, err
}

// window is how many requests are on their way at once: the daemon takes up to ten from a connection in a turn of its
// loop (Open vSwitch: lib/unixctl.c, run_connection).
const window = 10

// Each runs a command once for each list of parameters, over one connection, and hands over each answer, or the
// command's error, in order. Its own error is one of the connection: later commands were run or not.
func Each(ctx context.Context, path, command string, params [][]string, each func(i int, text string, refused *CommandError)) error {
	return with(ctx, path, command, func(conn net.Conn) error { return exchange(conn, command, params, each) })
}

// with connects to the daemon for do, which ends with the context.
func with(ctx context.Context, path, command string, do func(net.Conn) error) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("control socket %s does not answer: %w", path, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends what is under way
	defer stop()
	err = do(conn)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("control socket %s, %s: %w", path, command, ctx.Err())
	case err != nil:
		return fmt.Errorf("control socket %s, %s: %w", path, command, err)
	}
	return nil
}

func exchange(conn net.Conn, command string, params [][]string, each func(int, string, *CommandError)) error {
	s := &stream{r: bufio.NewReader(conn), most: MaxReply}
	sent := 0
	for i := range params {
		for ; sent < len(params) && sent < i+window; sent++ {
			if err := send(conn, sent, command, params[sent]); err != nil {
				return err
			}
		}
		var refused *CommandError
		if err := s.answer(command); err != nil && !errors.As(err, &refused) {
			return err
		}
		each(i, s.result, refused)
	}
	return nil
}

func send(conn net.Conn, id int, command string, params []string) error {
	ask, err := json.Marshal(request{ID: id, Method: command, Params: append([]string{}, params...)})
	if err == nil {
		_, err = conn.Write(ask)
	}
	return err
}
