package dpctl

import (
	"bufio"
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

// Daemon is ovs-vswitchd as its control socket shows it, and in it one datapath. The socket takes JSON-RPC
// 1.0 (Open vSwitch: lib/unixctl.c): requests with texts as parameters, each answered by a text.
type Daemon struct {
	Control  string // path of the control socket
	Datapath string // such as system@ovs-system; "": the daemon's only one
	Missing  error  // why the control socket is not known, which is the error of every call
}

// Find returns the Daemon of a datapath type. The control socket, ovs-vswitchd.PID.ctl, is next to the
// database's; that of a remote database (tcp:, ssl:) is missing. Find does not check whether ovs-vswitchd
// answers there.
func Find(database, datapathType string) (t Daemon) {
	if datapathType != "" {
		t.Datapath = datapathType + "@ovs-" + datapathType
	}
	socket, local := strings.CutPrefix(database, "unix:")
	if !local {
		t.Missing = fmt.Errorf("the control socket of ovs-vswitchd is on the switch's own machine; "+
			"its database is at %s", database)
		return t
	}

	dir := filepath.Dir(socket)
	file := filepath.Join(dir, "ovs-vswitchd.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Missing = fmt.Errorf("cannot find the control socket of ovs-vswitchd: %w", err)
		return t
	}
	pid, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		t.Missing = fmt.Errorf("cannot find the control socket of ovs-vswitchd: %s holds no process id", file)
	}
	t.Control = filepath.Join(dir, fmt.Sprintf("ovs-vswitchd.%d.ctl", pid))
	return t
}

// CommandError is a command that the daemon refused.
type CommandError struct{ Command, Text string }

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %s", e.Command, strings.Join(strings.Fields(e.Text), " "))
}

// call runs one command and returns its reply. It ends with the context, whatever the daemon does. An error
// of the command itself is a *CommandError.
func (t Daemon) call(ctx context.Context, command string, params ...string) (text string, err error) {
	broken := t.each(ctx, command, [][]string{params}, func(_ int, reply string, refused *CommandError) {
		if text = reply; refused != nil {
			err = refused
		}
	})
	if broken != nil {
		return "", broken
	}
	return text, err
}

// eachReply has the number of a request and its reply, or the error of the command.
type eachReply func(i int, text string, refused *CommandError)

// lines runs one command like call and calls do for each line of its reply, without the line's end, as it
// comes: memory does not grow with their number. The line is valid during the call only. An error of do ends
// it.
func (t Daemon) lines(
	ctx context.Context, command string, params []string, do func(line []byte) error,
) error {
	var refused error
	err := t.connect(ctx, command, func(conn net.Conn) error {
		r := &reader{r: bufio.NewReaderSize(io.LimitReader(conn, maxAll), 64<<10), line: do, most: maxLine}
		return exchange(conn, r, command, [][]string{params}, func(_ int, _ string, e *CommandError) {
			if e != nil {
				refused = e
			}
		})
	})
	return errors.Join(err, refused)
}

// each runs a command once for each list of parameters, over one connection, and calls do with each reply, or
// the command's error, in order. Its own error is one of the connection: later commands were run or not.
func (t Daemon) each(ctx context.Context, command string, params [][]string, do eachReply) error {
	return t.connect(ctx, command, func(conn net.Conn) error {
		r := &reader{r: bufio.NewReader(io.LimitReader(conn, maxAll)), most: maxReply}
		return exchange(conn, r, command, params, do)
	})
}

// dialTimeout bounds the connecting; the context bounds the rest.
const dialTimeout = 5 * time.Second

// connect connects to the daemon for do, which ends with the context.
func (t Daemon) connect(ctx context.Context, command string, do func(net.Conn) error) error {
	if t.Missing != nil {
		return t.Missing
	}
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", t.Control)
	if err != nil {
		return fmt.Errorf("control socket %s does not answer: %w", t.Control, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends what is under way
	defer stop()

	err = do(conn)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("control socket %s, %s: %w", t.Control, command, err)
	}
	return nil
}

// window is how many requests are on their way at once: the daemon takes up to ten from a connection in a
// turn of its loop (Open vSwitch: lib/unixctl.c, run_connection).
const window = 10

// request is a request of JSON-RPC.
type request struct {
	ID     int      `json:"id"`
	Method string   `json:"method"`
	Params []string `json:"params"`
}

// exchange sends the requests and reads their replies.
func exchange(conn net.Conn, r *reader, command string, params [][]string, do eachReply) error {
	sent := 0
	for i := range params {
		for ; sent < len(params) && sent < i+window; sent++ {
			texts := append([]string{}, params[sent]...) // [] without any
			ask, err := json.Marshal(request{ID: sent, Method: command, Params: texts})
			if err == nil {
				_, err = conn.Write(ask)
			}
			if err != nil {
				return err
			}
		}

		text, refused, err := r.reply()
		if err != nil {
			return err
		}
		if refused != nil {
			refused.Command = command
		}
		do(i, text, refused)
	}
	return nil
}
