//go:build !windows

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/test/wait"
)

// Only a socket on which nothing listens is replaced. Everything else of that name stays as it is, and the error names it.
func TestSocketReplacesOnlyDeadSockets(t *testing.T) {
	dead := func(path string) {
		l, err := net.Listen("unix", path)
		must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	live := func(network string) func(string) {
		return func(path string) {
			fd, err := syscall.Socket(syscall.AF_UNIX, map[string]int{"unix": syscall.SOCK_STREAM, "unixgram": syscall.SOCK_DGRAM}[network], 0)
			must(t, err)
			t.Cleanup(func() { syscall.Close(fd) })
			must(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
			if network == "unix" {
				must(t, syscall.Listen(fd, 0))
			}
		}
	}
	for _, tc := range []struct {
		name string
		make func(path string)
		want string // in the error; "": it is replaced
	}{
		{"nothing", func(string) {}, ""},
		{"a dead socket", dead, ""},
		{"a regular file", func(p string) { must(t, os.WriteFile(p, []byte("kubeconfig"), 0o600)) }, "regular file"},
		{"an empty file", func(p string) { must(t, os.WriteFile(p, nil, 0o600)) }, "regular file"},
		{"an empty directory", func(p string) { must(t, os.Mkdir(p, 0o700)) }, "directory"},
		{"a FIFO", func(p string) { must(t, syscall.Mkfifo(p, 0o600)) }, "named pipe"},
		{"a link to a file", func(p string) {
			must(t, os.WriteFile(p+".target", []byte("kubeconfig"), 0o600))
			must(t, os.Symlink(p+".target", p))
		}, "symbolic link"},
		{"a link to a dead socket", func(p string) { dead(p + ".target"); must(t, os.Symlink(p+".target", p)) }, "symbolic link"},
		{"a link to nothing", func(p string) { must(t, os.Symlink(p+".target", p)) }, "symbolic link"},
		{"a live socket", live("unix"), "another nkp is running"},
		{"a live socket with a full queue", func(p string) {
			live("unix")(p)
			for range 2 {
				if c, err := net.Dial("unix", p); err == nil {
					t.Cleanup(func() { c.Close() })
				}
			}
		}, "another nkp is running"},
		{"a datagram socket of another program", live("unixgram"), "another program"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "nkp.sock")
			tc.make(path)
			before, _ := os.Lstat(path)
			l, err := listen(path)
			if err == nil {
				defer l.Close()
			}
			if tc.want == "" {
				must(t, err)
				if info, err := os.Lstat(path); err != nil {
					t.Error(err)
				} else if info.Mode() != os.ModeSocket|0o600 {
					t.Error(info.Mode())
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "--socket") {
				t.Errorf("error %v, want %q, the path and --socket", err, tc.want)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || before.Size() != after.Size() {
				t.Errorf("%s was replaced: %v", tc.name, err)
			}
		})
	}
}

// Of several agents that start at once over the socket of a dead one, one gets it.
func TestSocketHasOneOwner(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "nkp.sock")
		old, err := net.Listen("unix", path)
		must(t, err)
		old.(*net.UnixListener).SetUnlinkOnClose(false)
		old.Close()
		got := make(chan net.Listener)
		for range 8 {
			go func() {
				l, _ := listen(path)
				got <- l
			}()
		}
		owners := 0
		for range 8 {
			if l := <-got; l != nil {
				owners++
				defer l.Close()
			}
		}
		if owners != 1 {
			t.Fatalf("%d agents listen on one socket", owners)
		}
	}
}

// Agents whose sockets are in one directory may start at once. The wait for a directory that a program keeps locked ends.
func TestSocketsInOneDirectory(t *testing.T) {
	dir := t.TempDir()
	errs := make(chan error)
	for i := range 32 {
		go func() {
			l, err := listen(filepath.Join(dir, fmt.Sprintf("nkp-%d.sock", i)))
			if err == nil {
				l.Close()
			}
			errs <- err
		}()
	}
	for range 32 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	var open [2]*os.File
	for i := range open {
		f, err := os.Open(dir)
		must(t, err)
		defer f.Close()
		open[i] = f
	}
	must(t, lockDir(open[0], 0))
	if err := lockDir(open[1], 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "another program has locked "+dir) {
		t.Errorf("a locked directory: %v", err)
	}
}

// An agent counts as absent only if nothing listens on its socket, not if it does not answer.
func TestNotAbsent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if _, err := api.NewCaller(path).Status(t.Context()); !errors.Is(err, api.ErrAbsent) || !strings.Contains(err.Error(), "is it running?") {
		t.Error("nothing listens: ", err)
	}
	l, err := net.Listen("unix", path)
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := api.NewCaller(path).Status(ctx); err == nil || errors.Is(err, api.ErrAbsent) || !strings.Contains(err.Error(), "nkp is running (something listens on "+path+"), but has not answered for") {
		t.Error("nothing answers: ", err)
	}
}

// While a start waits, the socket says for what; afterwards the name is free.
func TestWaiting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	w := AnswerWaiting(path, slog.New(slog.DiscardHandler))
	w.Say("the database")
	wait.NoError(t, "the answer at the socket", func() error {
		_, err := api.NewCaller(path).Diff(t.Context())
		if err == nil || !strings.Contains(err.Error(), "nkp is starting: it has waited for the database since 20") {
			return fmt.Errorf("it is %w", err)
		}
		return nil
	})
	w.Stop()
	l, err := listen(path)
	must(t, err)
	l.Close()
}
