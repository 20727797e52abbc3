//go:build linux

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// Process is a program under test that runs on a host.
type Process struct {
	*testbed.Program
	Log testbed.Output // what it has written
}

// Start starts a program on the host. It gets SIGTERM when the test ends, and fails the test if it does not end by itself within
// wait.Limit. The end of its log is part of a failed test's log.
func Start(t testing.TB, h *testbed.Host, argv ...string) *Process {
	t.Helper()
	p := &Process{}
	program, err := h.Launch(&p.Log, argv...)
	Must(t, err)
	p.Program = program
	t.Cleanup(func() {
		if err := p.Stop(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", argv[0], Tail(p.Log.String(), 6000))
		}
	})
	return p
}

// Kill ends the program without a chance to clean up.
func (p *Process) Kill() { _ = p.Stop(syscall.SIGKILL) } // which never fails

// Freeze suspends the program (SIGSTOP); Thaw resumes it.
func (p *Process) Freeze() error { return p.Cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw resumes a frozen program (SIGCONT).
func (p *Process) Thaw() error { return p.Cmd.Process.Signal(syscall.SIGCONT) }

// Run runs a command on the host to its end, at most until the context ends, and returns what it printed and its exit status; -1
// if a signal ended it.
func Run(ctx context.Context, t testing.TB, h *testbed.Host, argv ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	Must(t, h.Start(cmd))
	_ = cmd.Wait() // the exit status is returned
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// Await calls check until it returns nil, for at most limit: at first every 30 ms, then, since most checks start a program, less and less
// often, up to every 300 ms. The error is the last one of check, or reports that p has ended.
func Await(limit time.Duration, p *testbed.Program, check func() error) error {
	pause := 30 * time.Millisecond
	for deadline := time.Now().Add(limit); ; time.Sleep(pause) {
		pause = min(pause+pause/4, 300*time.Millisecond)
		err := check()
		switch {
		case err == nil:
			return nil
		case p.Ended():
			return errors.New("the program has ended")
		case time.Now().After(deadline):
			return fmt.Errorf("after %v: %w", limit, err)
		}
	}
}

// Must ends the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Tail returns the last n bytes of s.
func Tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}
