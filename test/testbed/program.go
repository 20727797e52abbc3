//go:build linux

package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// Program is a program under test at work on a host.
type Program struct {
	Cmd  *exec.Cmd
	Done <-chan struct{} // closed when it has ended
	p    *process
}

// Launch starts a program on the host and writes to log what it says. It dies with the bed or with this process.
func (h *Host) Launch(log io.Writer, argv ...string) (*Program, error) {
	cmd := h.bed.command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := h.ns.daemon(argv[0], "", cmd)
	if err != nil {
		return nil, err
	}
	return &Program{Cmd: cmd, Done: p.done, p: p}, nil
}

// Ended reports whether the program has ended.
func (p *Program) Ended() bool { return !p.p.running() }

// Stop sends a signal and waits for the end. One that has not ended after wait.Limit is killed, which is an error.
func (p *Program) Stop(sig syscall.Signal) error { return p.p.stop(sig) }

// Output keeps what programs write to it. All methods may be called from any goroutine.
type Output struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

// Write is part of io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// NKP returns the path of the nkp under test: the one that the environment variable NKP_BINARY names, or built once. Who calls
// it calls RemoveBuilt in the end.
var NKP = sync.OnceValues(func() (string, error) {
	return Build("NKP_BINARY", ".", "github.com/nkp-proxy/nkp")
})

// Build returns the path of the program that an environment variable names, or else builds a package of the module that the
// folder belongs to.
func Build(env, folder, pkg string, flags ...string) (string, error) {
	if bin := os.Getenv(env); bin != "" {
		return filepath.Abs(bin)
	}
	dir, err := builds()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, filepath.Base(pkg))
	args := append([]string{"build", "-C", folder, "-o", bin}, flags...)
	if out, err := exec.Command("go", append(args, pkg)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	return bin, nil
}

// RemoveBuilt removes what Build has built. It comes last, from TestMain.
func RemoveBuilt() error {
	dir, err := builds()
	return errors.Join(err, os.RemoveAll(dir))
}

// builds is where programs are built.
var builds = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "nkp-built-") })
