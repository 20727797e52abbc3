package e2e

import (
	"bytes"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// process is a running program on a node.
type process struct {
	cmd  *exec.Cmd
	log  buffer
	done chan struct{} // closed when it has ended
}

// start starts a program on a host; it ends with the test.
func start(t *testing.T, h *testbed.Host, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	must(t, h.Start(cmd))
	go func() { // ends with the process
		cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, tail(p.log.String(), 5000))
		}
	})
	return p
}

// kill ends the process without a chance to clean up, and waits for its end.
func (p *process) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// freeze stops the process where it stands; thaw lets it go on.
func (p *process) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) thaw() error   { return p.cmd.Process.Signal(syscall.SIGCONT) }

// buffer is a bytes.Buffer for two goroutines.
type buffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (s *buffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *buffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}
