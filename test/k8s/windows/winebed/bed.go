//go:build linux

package winebed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/wait"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// How long Wine may take.
const (
	prefixTime = 3 * time.Minute
	runTime    = 3 * time.Minute // of a program that Run waits for: test binaries take 20 s
)

// Prefix is a Wine installation for all tests of a test binary. Beds share it: what differs between them is the fake HNS.
type Prefix struct {
	wine string
	dir  string // of everything
}

// NewPrefix makes a prefix with the DLLs in a temporary directory; Close removes it.
func NewPrefix() (p *Prefix, err error) {
	wine, err := Available()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nkp-wine-")
	if err != nil {
		return nil, err
	}
	p = &Prefix{wine: wine, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), prefixTime)
	defer cancel()
	if out, err := output(p.command(ctx, "wineboot", "-i")); err != nil {
		return p, fmt.Errorf("wineboot: %w\n%s", err, out)
	}
	if err := p.wait(ctx); err != nil {
		return p, err
	}
	return p, buildDLLs(p.system32())
}

func (p *Prefix) system32() string { return p.DriveC("windows", "system32") }

// DriveC returns the Linux path of a file below C:\.
func (p *Prefix) DriveC(names ...string) string {
	return filepath.Join(append([]string{p.dir, "prefix", "drive_c"}, names...)...)
}

// Install puts a program into system32 in place of Wine's own.
func (p *Prefix) Install(exe, name string) error {
	data, err := os.ReadFile(exe)
	if err != nil {
		return err
	}
	path := filepath.Join(p.system32(), name)
	_ = os.Remove(path) // it may be a link to Wine's own file
	return os.WriteFile(path, data, 0o755)
}

// Dir is a directory that goes with the prefix.
func (p *Prefix) Dir() string { return p.dir }

// Close ends all programs of the prefix and removes it.
func (p *Prefix) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	c := exec.CommandContext(ctx, server(p.wine), "-k") // ends the programs of this prefix only
	c.Env = p.env()
	_ = c.Run() // it fails if nothing runs any more
	_ = p.wait(ctx)
	return os.RemoveAll(p.dir)
}

// wait waits until no program of the prefix runs any more.
func (p *Prefix) wait(ctx context.Context) error {
	c := exec.CommandContext(ctx, server(p.wine), "-w")
	c.Env = p.env()
	return c.Run()
}

func (p *Prefix) env(more ...string) []string {
	env := []string{"WINEPREFIX=" + filepath.Join(p.dir, "prefix"), "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml=;computenetwork,vmcompute,bcryptprimitives,netsh.exe=n",
		"HOME=" + p.dir, "PATH=" + os.Getenv("PATH")}
	return append(env, more...)
}

func (p *Prefix) command(ctx context.Context, exe string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, p.wine, append([]string{exe}, args...)...)
	c.Env = p.env()
	c.Dir = p.dir
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.WaitDelay = 5 * time.Second
	return c
}

// Bed is a Windows host: programs in it meet the fake HNS.
type Bed struct {
	t      *testing.T
	prefix *Prefix
	HNS    *hnsfake.Server
	addr   string
	dir    string
}

// New returns a host with a fake HNS of a version. It goes with the test.
func New(t *testing.T, p *Prefix, v hns.Version) *Bed {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// On C: and not below /tmp, because Wine has no sticky bit: it shows a mode of 1777 as Everyone's right to delete what is in there.
	dir, err := os.MkdirTemp(p.DriveC(), "host-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b := &Bed{t: t, prefix: p, HNS: hnsfake.New(v), addr: l.Addr().String(), dir: dir}
	done := make(chan error, 1)
	go func() { done <- b.HNS.Serve(l) }() // ends when l is closed and the programs are gone
	t.Cleanup(func() {
		l.Close()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the fake HNS: %v", err)
			}
		case <-time.After(wait.Limit):
			t.Error("a program still talks to the fake HNS")
		}
	})
	return b
}

// Path returns the Linux path of a file of the host, Windows the same as programs there call it.
func (b *Bed) Path(name string) string { return filepath.Join(b.dir, name) }

// Windows returns the name that a Linux path has in Windows.
func Windows(path string) string {
	drive := "Z:"
	if _, below, ok := strings.Cut(path, "/drive_c/"); ok {
		drive, path = "C:", "/"+below
	}
	return drive + strings.ReplaceAll(path, "/", `\`)
}

// Process is a running Windows program.
type Process struct {
	cmd  *exec.Cmd
	Out  Output
	done chan struct{} // closed when it has ended
}

// Start starts a Windows program; the test's end kills it.
func (b *Bed) Start(exe string, args ...string) *Process {
	b.t.Helper()
	c := b.prefix.command(context.Background(), exe, args...)
	c.Env = b.Env()
	p := &Process{cmd: c, Out: Output(filepath.Join(b.dir, fmt.Sprintf("output-%d", time.Now().UnixNano()))), done: make(chan struct{})}
	f, err := os.Create(string(p.Out))
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	c.Stdout, c.Stderr = f, f
	if err := c.Start(); err != nil {
		b.t.Fatal(err)
	}
	go func() {
		_ = c.Wait() // how it ended does not matter; what it printed does
		close(p.done)
	}()
	b.t.Cleanup(p.Kill)
	return p
}

// Env is the environment of programs of this host.
func (b *Bed) Env() []string { return b.prefix.env("NKP_FAKE_HNS=" + b.addr) }

// Kill ends the program at once, as a crash does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// Ended reports whether the program has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Run runs a Windows program to its end, at most runTime, and returns its output.
func (b *Bed) Run(exe string, args ...string) (string, error) {
	b.t.Helper()
	return b.RunIn(b.dir, exe, args...)
}

// ForServices lets services meet this host's fake HNS, too: they get no environment from who starts them. One host at a time can.
func (b *Bed) ForServices() {
	b.t.Helper()
	file := b.prefix.DriveC("nkp-fake-hns")
	if err := os.WriteFile(file, []byte(b.addr), 0o644); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { os.Remove(file) })
}

// RunIn is Run in a directory. A program that fails without a word is run once more, with Wine's own errors in its output: Wine's loader
// fails so, which says nothing with WINEDEBUG=-all, for instance where it meets a wineserver that is about to end. nkp prints an error, and
// each step before it takes it, so that such a run has changed nothing.
func (b *Bed) RunIn(dir, exe string, args ...string) (string, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTime)
	defer cancel()
	silent := false
	for {
		c := b.prefix.command(ctx, exe, args...)
		c.Env = b.Env()
		if silent {
			c.Env = append(c.Env, "WINEDEBUG=err+all")
		}
		c.Dir = dir
		out, err := output(c)
		// On a busy machine wineserver kills a program that is not gone a second after it has ended (Wine, server/process.c,
		// process_sigkill), and its exit status is lost.
		if p := c.ProcessState; p != nil && p.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL && ctx.Err() == nil {
			b.t.Logf("%s %v was killed by Wine; once more", exe, args)
			continue
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("it had not ended after %v: %w", runTime, err)
		} else if err != nil && out == "" && !silent {
			b.t.Logf("%s %v failed without a word (%v); once more", exe, args, err)
			silent = true
			continue
		}
		return strings.ReplaceAll(out, "\r\n", "\n"), err
	}
}

// output runs a program and returns its output. It goes through a file: Wine's own processes, which outlive the program, hold on
// to its output, and a pipe would not end before they do.
func output(c *exec.Cmd) (string, error) {
	f, err := os.CreateTemp("", "nkp-wine-output-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	c.Stdout, c.Stderr = f, f
	err = c.Run()
	text, err2 := os.ReadFile(f.Name())
	return string(text), errors.Join(err, err2)
}
