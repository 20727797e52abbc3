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
	"time"
)

// Program is a program under test at work on a host.
type Program struct {
	Cmd  *exec.Cmd
	Done chan struct{} // closed when it has ended
}

// Launch starts a program on the host and writes to log what it says. It dies with the bed or with this process.
func (h *Host) Launch(log io.Writer, argv ...string) (*Program, error) {
	p := &Program{Cmd: exec.Command(argv[0], argv[1:]...), Done: make(chan struct{})}
	p.Cmd.Stdout, p.Cmd.Stderr = log, log
	if err := h.Start(p.Cmd); err != nil {
		return nil, err
	}
	go func() { // ends with the program
		_ = p.Cmd.Wait()
		close(p.Done)
	}()
	return p, nil
}

// Ended tells whether the program has ended.
func (p *Program) Ended() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// Stop sends a signal and waits for the end. A program that takes longer than 10 s is killed, which is an error.
func (p *Program) Stop(sig syscall.Signal) error {
	if p.Ended() {
		return nil
	}
	_ = p.Cmd.Process.Signal(sig)
	select {
	case <-p.Done:
		return nil
	case <-time.After(10 * time.Second):
		_ = p.Cmd.Process.Kill()
		<-p.Done
		return fmt.Errorf("%s did not end within 10 s of %v", p.Cmd.Path, sig)
	}
}

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

// String gives all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// NKP gives the path of the nkp under test: the one that the environment variable NKP_BINARY names, or built once. Who calls
// it calls RemoveBuilt in the end.
var NKP = sync.OnceValues(func() (string, error) {
	return Build("NKP_BINARY", ".", "github.com/nkp-proxy/nkp")
})

// Build gives the path of the program that an environment variable names, or else builds a package of the module that the
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
