//go:build linux

package xtables

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// commitLine ends a transaction's input: without it nothing is committed.
const commitLine = "COMMIT\n"

// Restore commits input for iptables-restore to one table, wholly or not at all; what it does not name stays, counters
// included. The error says which line was refused.
func (t *Tables) Restore(ctx context.Context, input []byte) error {
	tx, err := t.Begin(ctx, input)
	if err != nil {
		return err
	}
	return tx.Commit()
}

// process is iptables-restore at work on a Transaction.
type process struct {
	ctx    context.Context
	cmd    *exec.Cmd
	stdin  *io.PipeWriter
	input  []byte
	stderr bytes.Buffer
	fed    chan struct{} // closed when all input but the last line is handed over
}

// Begin starts a transaction. With NFT it leaves the kernel alone until Commit, and looks at it only then; with Legacy it
// holds the lock from here on.
func (t *Tables) Begin(ctx context.Context, input []byte) (Transaction, error) {
	r, w := io.Pipe()
	tx := &process{ctx: ctx, stdin: w, input: input, fed: make(chan struct{})}
	tx.cmd = exec.CommandContext(ctx, t.progs.restore, "--noflush", "--counters", "-w", strconv.Itoa(LockWait))
	tx.cmd.Stdin, tx.cmd.Stderr = r, &tx.stderr
	if err := tx.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", t.progs.restore, err)
	}
	go func() {
		defer close(tx.fed)
		_, _ = w.Write(bytes.TrimSuffix(input, []byte(commitLine))) // if the program has ended early, Wait says why
	}()
	return tx, nil
}

func (tx *process) Commit() error {
	<-tx.fed
	_, _ = io.WriteString(tx.stdin, commitLine)
	tx.stdin.Close()
	err := tx.cmd.Wait()
	if err == nil {
		return nil
	}
	name := tx.cmd.Path
	text := strings.Join(strings.Fields(tx.stderr.String()), " ")
	if tx.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", name, tx.ctx.Err())
	}
	for _, busy := range []string{"xtables lock", "Resource temporarily unavailable", "Interrupted system call"} {
		if strings.Contains(text, busy) {
			return fmt.Errorf("%s: %w: %s", name, ErrBusy, text)
		}
	}
	if l := refusedLine(text, tx.input); l != "" {
		text += ": " + l
	}
	return fmt.Errorf("%s: %w: %s", name, err, text)
}

func (tx *process) Abort() {
	_ = tx.cmd.Process.Kill() // it may have ended
	<-tx.fed
	tx.stdin.Close()
	_ = tx.cmd.Wait()
}

var lineNumber = regexp.MustCompile(`(?i)\bline:? (\d+)`)

// refusedLine gives the line of input that an error message points to; "" if it points to none, or to COMMIT.
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
