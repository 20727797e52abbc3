//go:build linux

package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// commitLine ends a transaction's input. Without it iptables-restore commits nothing.
const commitLine = "COMMIT\n"

// Restore atomically commits input, in the format of iptables-restore, to one table. Chains that the input
// does not name stay, with their rules and counters. It blocks until iptables-restore exits. The error quotes
// the rejected line, if iptables-restore names one.
func (t *Tables) Restore(ctx context.Context, input []byte) error {
	tx, err := t.Begin(ctx, input)
	if err != nil {
		return err
	}
	return tx.Commit()
}

// process is a Transaction: a running iptables-restore.
type process struct {
	tables *Tables
	cause  func() error // why the program was killed; nil: it was not
	cancel context.CancelCauseFunc
	cmd    *exec.Cmd
	input  []byte
	stderr bytes.Buffer
	commit chan struct{} // closed by Commit and Abort: feed may write commitLine
	fed    chan error    // receives the result of writing the input: nil, or the error
}

// errUnread is the error of a program that exits with status 0 without having read its input.
var errUnread = errors.New("exited before reading all of its input")

// Begin starts a transaction, which the caller must end with Commit or Abort. With NFT, iptables-restore
// neither reads nor changes the kernel's rules before Commit. With Legacy it holds the xtables lock from here
// on. The program is killed when the context ends. The time limit of a program applies only from Commit on.
func (t *Tables) Begin(ctx context.Context, input []byte) (Transaction, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	tx := &process{
		tables: t,
		cause:  func() error { return context.Cause(ctx) },
		cancel: cancel,
		input:  input,
		commit: make(chan struct{}),
		fed:    make(chan error, 1),
	}
	tx.cmd = exec.CommandContext(ctx, t.progs.restore, "--noflush", "--counters", "-w",
		strconv.Itoa(LockWait))
	tx.cmd.Stderr, tx.cmd.WaitDelay = &tx.stderr, pipesLimit
	stdin, err := tx.cmd.StdinPipe()
	if err == nil {
		err = tx.cmd.Start()
	}
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("%s: %w", t.progs.restore, err)
	}
	go tx.feed(stdin)
	return tx, nil
}

// feed writes the input to the program. It ends only after Commit or Abort: they close tx.commit, and they
// call Wait, which closes the pipe once the program has exited.
func (tx *process) feed(stdin io.WriteCloser) {
	defer stdin.Close()
	_, err := stdin.Write(bytes.TrimSuffix(tx.input, []byte(commitLine)))
	if err == nil {
		<-tx.commit
		_, err = io.WriteString(stdin, commitLine)
	}
	tx.fed <- err
}

func (tx *process) Commit() error {
	defer tx.cancel(nil)
	timeout := time.AfterFunc(tx.tables.limit, func() { tx.cancel(tx.tables.timeoutError()) })
	defer timeout.Stop()
	close(tx.commit)
	err := tx.cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the program itself has exited with status 0
	}
	if err == nil && <-tx.fed != nil {
		err = errUnread
	}
	if err == nil {
		return nil
	}
	text := tx.stderr.String()
	if l := refusedLine(text, tx.input); l != "" {
		text += ": " + l
	}
	return failure(tx.cause(), tx.cmd.Path, err, text)
}

func (tx *process) Abort() {
	tx.cancel(nil) // kills the program
	_ = tx.cmd.Wait()
	close(tx.commit) // releases feed; the program has exited and cannot read commitLine
}

var lineNumber = regexp.MustCompile(`(?i)\bline:? (\d+)`)

// refusedLine returns the line of input that an error message points to; "" if it points to none, or to
// COMMIT.
func refusedLine(text string, input []byte) string {
	m := lineNumber.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	n, _ := strconv.Atoi(m[1])
	for l := range bytes.Lines(input) {
		if n--; n == 0 {
			if l := strings.TrimSpace(string(l)); l != "COMMIT" {
				return l
			}
			return ""
		}
	}
	return ""
}
