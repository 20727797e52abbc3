//go:build linux

package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// promptly is how soon a transaction must return after its program has ended.
const promptly = 2 * time.Second

// large is a transaction that no pipe holds: a pipe takes 64 kB. Its second line is refused by iptables-restore.
func large(second string) []byte {
	var b bytes.Buffer
	b.WriteString("*nat\n" + second + "\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, ":TEST-%d - [0:0]\n", i)
	}
	b.WriteString(commitLine)
	return b.Bytes()
}

// script writes a program that stands for iptables-restore.
func script(t *testing.T, body string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "restore")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// returns waits for f, and fails the test if it takes longer than promptly and what else is allowed.
func returns(t *testing.T, more time.Duration, f func() error) (err error) {
	t.Helper()
	start, done := time.Now(), make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err = <-done:
		t.Logf("returned after %v: %v", time.Since(start).Round(time.Millisecond), err)
	case <-time.After(testbed.Patient(more + promptly)):
		t.Fatalf("does not return within %v", more+promptly)
	}
	return err
}

// Commit, Abort and a cancelled context return as soon as the program ends, whatever it has read, and whoever else holds its
// standard input and output open.
func TestTransactionsEnd(t *testing.T) {
	const limit = time.Second
	for _, c := range []struct {
		name, body string
		ends       bool // by itself
		want       string
	}{
		{"refuses at once", "echo line 2 failed >&2; exit 2", true, "line 2 failed"},
		{"reads a little", "head -c 1000 >/dev/null; echo line 2 failed >&2; exit 2", true, "line 2 failed"},
		{"is killed", "kill -KILL $$", true, "killed"},
		{"leaves a child behind", "sleep 30 <&0 & echo line 2 failed >&2; exit 2", true, "line 2 failed"},
		{"ends well, unread", "exit 0", true, "before reading all of its input"},
		{"closes its input", "exec <&-; exec sleep 30", false, "longer than"},
		{"never reads", "exec sleep 30", false, "longer than"},
		{"reads all and stays", "cat >/dev/null; exec sleep 30", false, "longer than"},
		{"stays with a child", "sleep 30", false, "longer than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tables := &Tables{progs: programs{restore: script(t, c.body)}, limit: limit}
			begin := func(ctx context.Context) Transaction {
				tx, err := tables.Begin(ctx, large("-A X"))
				if err != nil {
					t.Fatal(err)
				}
				return tx
			}
			err := returns(t, limit, begin(t.Context()).Commit)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Commit: %v, want %q", err, c.want)
			}
			if !c.ends && !errors.Is(err, ErrBusy) {
				t.Errorf("Commit: %v: a program that does not end is no fault of the input", err)
			}
			returns(t, 0, func() error { begin(t.Context()).Abort(); return nil })
			for what, end := range map[string]func(Transaction) error{
				"Commit": Transaction.Commit, "Abort": func(tx Transaction) error { tx.Abort(); return nil },
			} {
				ctx, cancel := context.WithCancel(t.Context())
				tx := begin(ctx)
				time.AfterFunc(50*time.Millisecond, cancel)
				if err := returns(t, 0, func() error { return end(tx) }); what == "Commit" && err == nil {
					t.Error("a cancelled Commit went well")
				}
				cancel()
			}
		})
	}
}

// The real programs refuse, are aborted and cancelled in the middle of a large transaction, and wait for a lock; nothing of
// the transaction is in force afterwards, and the next one goes through.
func TestLargeTransactions(t *testing.T) {
	testbed.Linux.Require(t)
	for _, backend := range []Backend{NFT, Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			lock := filepath.Join(t.TempDir(), "lock")
			t.Setenv("XTABLES_LOCKFILE", lock)
			b := testbed.Start(t, testbed.Options{Plane: testbed.Linux})
			tables := inHost(t, b.Node, backend)
			good := func() error { return tables.Restore(t.Context(), large(":TEST - [0:0]")) }

			if err := returns(t, 20*time.Second, func() error { return tables.Restore(t.Context(), large("-A TEST -j NOSUCH")) }); err == nil {
				t.Error("a wrong line was taken")
			} else if errors.Is(err, ErrBusy) {
				t.Errorf("a wrong line: %v", err)
			}
			tx, err := tables.Begin(t.Context(), large(":TEST - [0:0]"))
			if err != nil {
				t.Fatal(err)
			}
			returns(t, 0, func() error { tx.Abort(); return nil })
			ctx, cancel := context.WithCancel(t.Context())
			if tx, err = tables.Begin(ctx, large(":TEST - [0:0]")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(testbed.Patient(50 * time.Millisecond)) // it reads; without the last line nothing can be in force
			cancel()
			if err := returns(t, 0, tx.Commit); err == nil {
				t.Error("a cancelled transaction went well")
			}
			var names []string
			if err := b.Node.Do(func() (err error) { names, err = tables.ChainNames(t.Context(), "nat"); return err }); err != nil || len(names) > 10 {
				t.Errorf("%d chains after transactions that did not go through: %v", len(names), err)
			}
			if backend == Legacy {
				release := holdLock(t, lock)
				err := returns(t, LockWait*time.Second, good)
				if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), lock) {
					t.Errorf("with the lock held: %v, want an error that names %s", err, lock)
				}
				start := time.Now()
				time.AfterFunc(500*time.Millisecond, release)
				if err := good(); err != nil {
					t.Errorf("the lock is free after 0.5 s: %v", err)
				}
				t.Logf("waited %v for the lock", time.Since(start))
			}
			if err := good(); err != nil {
				t.Error(err)
			}
		})
	}
}

// holdLock takes the lock of the legacy back end as another iptables would.
func holdLock(t *testing.T, file string) (release func()) {
	t.Helper()
	cmd := exec.Command("flock", file, "-c", "echo; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return func() { _ = in.Close() }
}

// inHost returns tables whose programs run in a host's network namespace.
func inHost(t *testing.T, h *testbed.Host, b Backend) *Tables {
	t.Helper()
	tables, err := openTables(t.Context(), b, k8s.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*string{&tables.progs.iptables, &tables.progs.restore, &tables.progs.save} {
		*p = script(t, "exec nsenter --net="+h.Netns()+" "+*p+` "$@"`)
	}
	return tables
}
