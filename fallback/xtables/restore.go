//go:build linux

package xtables

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

// commitLine ends a transaction's input: without it nothing is committed.
const commitLine = "COMMIT\n"

// Restore atomically commits input for iptables-restore to one table. Chains and rules that the input does not name stay, with
// their counters. The error names the refused line.
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
	ctx    context.Context
	cancel context.CancelCauseFunc
	cmd    *exec.Cmd
	input  []byte
	stderr bytes.Buffer
	commit chan struct{} // closed: the last line may be written, if the program still runs
	fed    chan error    // receives the result of writing the input: nil, or the error
}

// errUnread is the error of a program that exits with status 0 without having read its input.
var errUnread = errors.New("exited before reading all of its input")

// Begin starts a transaction. With NFT, iptables-restore neither reads nor changes the kernel's rules before Commit; with Legacy it holds
// the xtables lock from here on. The program is killed when the context ends.
func (t *Tables) Begin(ctx context.Context, input []byte) (Transaction, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	tx := &process{tables: t, ctx: ctx, cancel: cancel, input: input, commit: make(chan struct{}), fed: make(chan error, 1)}
	tx.cmd = exec.CommandContext(ctx, t.progs.restore, "--noflush", "--counters", "-w", strconv.Itoa(LockWait))
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

// feed writes the input to the program. It returns at the latest when the program exits: Wait, called by Commit and Abort, closes the
// pipe then.
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
	return failure(tx.ctx, tx.cmd.Path, err, text)
}

func (tx *process) Abort() {
	tx.cancel(nil) // kills it
	_ = tx.cmd.Wait()
	close(tx.commit) // it cannot read the last line any more
}

var lineNumber = regexp.MustCompile(`(?i)\bline:? (\d+)`)

// refusedLine returns the line of input that an error message points to; "" if it points to none, or to COMMIT.
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
