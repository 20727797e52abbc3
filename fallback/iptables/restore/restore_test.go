//go:build linux

package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// pipe is how many bytes a pipe holds.
const pipe = 64 << 10

// large is a transaction that no pipe holds. Its second line is refused by iptables-restore.
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
	must(t, os.WriteFile(file, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
	return file
}

// returns waits for f, which must not wait for what never comes.
func returns(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	return wait.Receive(t, "the end of the transaction", done)
}

// Commit, Abort and a cancelled context return when the program ends or is killed, whatever it has read, and whoever else holds its
// standard input and output open.
func TestTransactionsEnd(t *testing.T) {
	const stays = "sleep 100" // longer than wait.Limit
	for _, c := range []struct {
		name, body string
		ends       bool // by itself
		want       string
	}{
		{"refuses at once", "echo line 2 failed >&2; exit 2", true, "line 2 failed"},
		{"reads a little", "head -c 1000 >/dev/null; echo line 2 failed >&2; exit 2", true, "line 2 failed"},
		{"is killed", "kill -KILL $$", true, "killed"},
		{"leaves a child behind", stays + " <&0 & echo line 2 failed >&2; exit 2", true, "line 2 failed"},
		{"ends well, unread", "exit 0", true, "before reading all of its input"},
		{"closes its input", "exec <&-; exec " + stays, false, "longer than"},
		{"never reads", "exec " + stays, false, "longer than"},
		{"reads all and stays", "cat >/dev/null; exec " + stays, false, "longer than"},
		{"stays with a child", stays, false, "longer than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tables := &Tables{progs: programs{restore: script(t, c.body)}, limit: 100 * time.Millisecond}
			if c.ends {
				tables.limit = wait.Limit
			}
			begin := func(ctx context.Context) Transaction {
				tx, err := tables.Begin(ctx, large("-A X"))
				must(t, err)
				return tx
			}
			err := returns(t, begin(t.Context()).Commit)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Commit: %v, want %q", err, c.want)
			}
			if !c.ends && !errors.Is(err, ErrBusy) {
				t.Errorf("Commit: %v: a program that does not end is no fault of the input", err)
			}
			tables.limit = 10 * wait.Limit // only the context ends it
			returns(t, func() error { begin(t.Context()).Abort(); return nil })
			for what, end := range map[string]func(Transaction) error{
				"Commit": Transaction.Commit, "Abort": func(tx Transaction) error { tx.Abort(); return nil },
			} {
				ctx, cancel := context.WithCancel(t.Context())
				tx := begin(ctx)
				time.AfterFunc(20*time.Millisecond, cancel) // any moment
				if err := returns(t, func() error { return end(tx) }); what == "Commit" && err == nil {
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

			if err := returns(t, func() error { return tables.Restore(t.Context(), large("-A TEST -j NOSUCH")) }); err == nil {
				t.Error("a wrong line was taken")
			} else if errors.Is(err, ErrBusy) {
				t.Errorf("a wrong line: %v", err)
			}
			tx, err := tables.Begin(t.Context(), large(":TEST - [0:0]"))
			must(t, err)
			returns(t, func() error { tx.Abort(); return nil })
			ctx, cancel := context.WithCancel(t.Context())
			if tx, err = tables.Begin(ctx, large(":TEST - [0:0]")); err != nil {
				t.Fatal(err)
			}
			// Without the last line nothing can be in force.
			wait.For(t, "the program to read", func() bool { return hasRead(t, tx) > pipe })
			cancel()
			if err := returns(t, tx.Commit); err == nil {
				t.Error("a cancelled transaction went well")
			}
			var names []string
			if err := b.Node.Do(func() (err error) { names, err = tables.ChainNames(t.Context(), "nat"); return err }); err != nil || len(names) > 10 {
				t.Errorf("%d chains after transactions that did not go through: %v", len(names), err)
			}
			if backend == Legacy {
				release := testbed.HoldLock(t, lock)
				err := returns(t, good)
				if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), lock) {
					t.Errorf("with the lock held: %v, want an error that names %s", err, lock)
				}
				done := make(chan error, 1)
				go func() { done <- good() }()
				wait.For(t, "the program to wait for the lock", func() bool { return testbed.WaitsForLock(t, lock) })
				release()
				if err := wait.Receive(t, "the transaction", done); err != nil {
					t.Errorf("the lock became free: %v", err)
				}
			}
			if err := good(); err != nil {
				t.Error(err)
			}
		})
	}
}

// hasRead returns how many bytes the program of a transaction has read, those of its own libraries included, which are few.
func hasRead(t *testing.T, tx Transaction) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", tx.(*process).cmd.Process.Pid))
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	}
	must(t, err)
	return n
}

// inHost returns tables whose programs run in a host's network namespace.
func inHost(t *testing.T, h *testbed.Host, b Backend) *Tables {
	t.Helper()
	tables, err := openTables(t.Context(), b, k8s.IPv4)
	must(t, err)
	for _, p := range []*string{&tables.progs.iptables, &tables.progs.restore, &tables.progs.save} {
		*p = script(t, "exec nsenter --net="+h.Netns()+" "+*p+` "$@"`)
	}
	return tables
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Over legacy the names of chains are those that iptables-save declares, each once, however many rules they have.
func TestChainNamesOfLegacy(t *testing.T) {
	save := script(t, `printf '*nat\n:INPUT ACCEPT [0:0]\n:KUBE-A - [0:0]\n-A KUBE-A -j RETURN\n-A KUBE-A -j ACCEPT\nCOMMIT\n'`)
	tables := &Tables{Backend: Legacy, progs: programs{save: save}, limit: wait.Limit}
	names, err := tables.ChainNames(t.Context(), "nat")
	if want := []string{"INPUT", "KUBE-A"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v; want %q", names, err, want)
	}
}
