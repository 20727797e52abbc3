//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	settleLimit  = 20 * time.Second     // how long nkp may take to bring the switch in step
	pollPause    = 5 * time.Millisecond // between two questions
	termLimit    = 10 * time.Second     // how long nkp may take to end
	commandLimit = 20 * time.Second     // for one command of nkp
	logLines     = 12                   // of nkp's log, shown when a step failed
	nkpCookies   = "cookie=0x6e6b700000000000/0xffffff0000000000"
)

// agent is a running nkp.
type agent struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func (l *lab) socket() string  { return filepath.Join(l.RunDir, "nkp.sock") }
func (l *lab) logFile() string { return filepath.Join(l.RunDir, "nkp.log") }

// sourceArgs are the flags that plan, diff and run share.
func (l *lab) sourceArgs() []string {
	return []string{"--manifests", l.working, "--ovsdb", l.DB(), "--bridge", l.Bridge, "--hostname-override", nodeName,
		"--gateway-mac", testbed.GatewayMAC, "--cluster-cidr", clusterCIDR}
}

// startAgent starts nkp on the node; it dies with this process.
func (l *lab) startAgent() error {
	log, err := os.OpenFile(l.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // nkp has its own copy
	a := &agent{cmd: exec.Command(l.nkp, append([]string{"run", "--socket", l.socket()}, l.sourceArgs()...)...), done: make(chan struct{})}
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := l.Node.Start(a.cmd); err != nil {
		return fmt.Errorf("start nkp: %w", err)
	}
	go func() { // ends with nkp
		_ = a.cmd.Wait()
		close(a.done)
	}()
	l.agent = a
	return nil
}

func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	<-a.done
}

func (a *agent) stop() {
	if a == nil {
		return
	}
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.done:
	case <-time.After(termLimit):
		a.kill()
	}
}

// nkpSays runs a command of nkp on the node and returns its output and exit status.
func (l *lab) nkpSays(args ...string) (stdout string, exit int, err error) {
	var out, errOut bytes.Buffer
	cmd := exec.Command(l.nkp, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := l.Node.Start(cmd); err != nil {
		return "", -1, err
	}
	late := time.AfterFunc(commandLimit, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	late.Stop()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || errOut.Len() > 0) {
		err = fmt.Errorf("nkp %s: %w: %s", args[0], err, strings.TrimSpace(errOut.String()))
	} else {
		err = nil
	}
	return out.String(), cmd.ProcessState.ExitCode(), err
}

// plan is the model of the manifest, by "nkp plan -o json".
func (l *lab) plan() (*k8s.View, error) {
	out, _, err := l.nkpSays("plan", "--manifests", l.working, "--hostname-override", nodeName, "-o", "json")
	if err != nil {
		return nil, err
	}
	v := &k8s.View{}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return nil, fmt.Errorf("nkp plan -o json: %w", err)
	}
	return v, nil
}

// settle waits until "nkp diff" finds the switch equal to what the manifest calls for, and returns how long it took from
// since on.
func (l *lab) settle(ctx context.Context, since time.Time) (time.Duration, error) {
	var last string
	err := l.await(ctx, func() (bool, error) {
		out, exit, err := l.nkpSays(append([]string{"diff"}, l.sourceArgs()...)...)
		if last = out; exit == 0 {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return 0, fmt.Errorf("the switch is not in step: %w\n%s", err, head(last, 5))
	}
	return time.Since(since), nil
}

// agentReady waits until the agent says that the switch is in step.
func (l *lab) agentReady(ctx context.Context, since time.Time) (time.Duration, error) {
	err := l.await(ctx, func() (bool, error) {
		out, _, err := l.nkpSays("status", "--socket", l.socket(), "-o", "json")
		if err != nil {
			return false, err
		}
		var s struct {
			InStep bool `json:"inStep"`
		}
		err = json.Unmarshal([]byte(out), &s)
		return s.InStep, err
	})
	return time.Since(since), err
}

// await calls ok until it returns true; its last error is the reason of a failure.
func (l *lab) await(ctx context.Context, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for {
		yes, err := ok()
		if yes {
			return nil
		}
		select {
		case <-l.agent.done:
			return errors.New("nkp has ended")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(pollPause):
		}
	}
}

// logTail is the end of nkp's log, "" if there is none.
func (l *lab) logTail() string {
	if l.agent == nil {
		return ""
	}
	b, err := os.ReadFile(l.logFile())
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "\nthe end of nkp's log:\n" + strings.Join(lines[max(0, len(lines)-logLines):], "\n")
}

// head is the beginning of a text: n lines of it, shortened.
func head(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > n {
		lines = append(lines[:n], "...")
	}
	for i, line := range lines {
		lines[i] = shorten(line, 150)
	}
	return strings.Join(lines, "\n")
}
