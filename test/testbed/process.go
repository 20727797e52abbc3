//go:build linux

package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/test/wait"
)

// process is a daemon in a namespace. The kernel kills it when this process goes.
type process struct {
	name string
	log  string // file, "" if it has none
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and been reaped
	err  error         // its exit; read after done
}

// start runs a command in the namespace and reaps it. cmd.SysProcAttr is set so
// that the child dies with the namespace's thread, which is to say with this
// process or with the bed.
func (n *namespace) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return n.do(cmd.Start)
}

func (n *namespace) daemon(name, log string, cmd *exec.Cmd) (*process, error) {
	if err := n.start(cmd); err != nil {
		return nil, fmt.Errorf("testbed: %s: %w", name, err)
	}
	p := &process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the child
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// stop sends a signal and waits for the end; after wait.Limit it kills, which is an error.
func (p *process) stop(sig syscall.Signal) (err error) {
	if !p.running() {
		return nil
	}
	_ = p.cmd.Process.Signal(sig)
	if sig != syscall.SIGKILL {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		select {
		case <-p.done:
			return nil
		case <-time.After(wait.Limit):
			err = fmt.Errorf("testbed: %s did not end within %v of %v", p.name, wait.Limit, sig)
			_ = p.cmd.Process.Kill()
		}
	}
	<-p.done
	return err
}

func (p *process) logTail() string {
	if p == nil || p.log == "" {
		return ""
	}
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// failed describes why something that p should have done did not happen. Others are daemons that p needs for it.
func (p *process) failed(what string, others ...*process) error {
	text := fmt.Sprintf("testbed: %s: %s (%s); log:\n%s", p.name, what, p.state(), p.logTail())
	for _, o := range others {
		text += fmt.Sprintf("\n%s (%s); log:\n%s", o.name, o.state(), o.logTail())
	}
	return errors.New(text)
}

// state reports whether the process runs, and where its threads wait: proc(5), status's State and wchan.
func (p *process) state() string {
	if !p.running() {
		return fmt.Sprintf("ended: %v", p.err)
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.cmd.Process.Pid))
	text := "still running"
	for _, dir := range tasks {
		name, _ := os.ReadFile(dir + "/comm")
		wchan, _ := os.ReadFile(dir + "/wchan")
		stat, _ := os.ReadFile(dir + "/stat")
		state := "?"
		if i := bytes.LastIndexByte(stat, ')'); i > 0 && i+2 < len(stat) { // the name may hold brackets
			state = string(stat[i+2])
		}
		text += fmt.Sprintf("; %s %s %s", strings.TrimSpace(string(name)), state, wchan)
	}
	return text
}

// output runs a command to its end in the namespace and returns what it printed
// on standard output, unchanged. The error of a failed command holds what it
// printed on standard error.
func (n *namespace) output(ctx context.Context, cmd *exec.Cmd) (string, string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	cmd.WaitDelay = wait.Limit
	err := n.start(cmd)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		stop()
	}
	if err == nil {
		return stdout.String(), stderr.String(), nil
	}
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return stdout.String(), stderr.String(), fmt.Errorf("%s: %w: %s",
		strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
}

// eventually polls ok until it is true, and reports whether it was before ctx ended or wait.Limit passed.
func eventually(ctx context.Context, ok func() bool) bool {
	return wait.Until(ctx, func() error {
		if ok() {
			return nil
		}
		return errNotYet
	}) == nil
}

var errNotYet = errors.New("it has not happened")
