package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// fakeTables are tables in memory. They take iptables-restore's input, refuse what iptables would refuse, and give it back.
type fakeTables struct {
	// refuse, if not nil, makes a transaction fail by one of its lines.
	refuse func(line string) bool
	// committed is called after each transaction, with the lock held.
	committed func(*fakeTables)
	// reading, if not nil, is called before a table is read, with the context of who reads.
	reading func(context.Context) error

	mu     sync.Mutex // protects what follows: tests look while a worker writes
	tables map[string]map[string][]string
	input  strings.Builder // all that was committed
	calls  map[string]int  // by method
	// Transactions that have begun and not ended, and how many there were at most.
	open, mostOpen int
}

func newFakeTables() *fakeTables {
	return &fakeTables{calls: map[string]int{}, tables: map[string]map[string][]string{
		"nat":    {"PREROUTING": nil, "INPUT": nil, "OUTPUT": nil, "POSTROUTING": nil},
		"filter": {"INPUT": nil, "FORWARD": nil, "OUTPUT": nil},
		"mangle": {"PREROUTING": nil, "INPUT": nil, "FORWARD": nil, "OUTPUT": nil, "POSTROUTING": nil},
	}}
}

func (f *fakeTables) Restore(_ context.Context, input []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["Restore"]++
	lines := strings.Split(strings.TrimSpace(string(input)), "\n")
	name := strings.TrimPrefix(lines[0], "*")
	chains := map[string][]string{}
	for c, list := range f.tables[name] {
		chains[c] = slices.Clone(list)
	}
	for i, l := range lines[1 : len(lines)-1] {
		if f.refuse != nil && f.refuse(l) {
			return fmt.Errorf("line %d refused: %s", i+2, l)
		}
		if err := change1(chains, l); err != nil {
			return fmt.Errorf("line %d: %s: %w", i+2, l, err)
		}
	}
	for c, list := range chains {
		for _, r := range list {
			if t := rules.Rule(r).Target(); strings.HasPrefix(t, "KUBE-") && !has(chains, t) {
				return fmt.Errorf("chain %s leads to %s, which does not exist", c, t)
			}
		}
	}
	f.tables[name] = chains
	f.input.Write(input)
	if f.committed != nil {
		f.committed(f)
	}
	return nil
}

// Begin starts a transaction that looks at nothing until it is committed.
func (f *fakeTables) Begin(ctx context.Context, input []byte) (restore.Transaction, error) {
	f.opened(+1)
	return &fakeTransaction{f, input, ctx}, nil
}

func (f *fakeTables) opened(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open += n
	f.mostOpen = max(f.mostOpen, f.open)
}

type fakeTransaction struct {
	tables *fakeTables
	input  []byte
	ctx    context.Context
}

func (tx *fakeTransaction) Commit() error {
	defer tx.tables.opened(-1)
	return tx.tables.Restore(tx.ctx, tx.input)
}

func (tx *fakeTransaction) Abort() { tx.tables.opened(-1) }

func has(m map[string][]string, k string) bool { _, ok := m[k]; return ok }

// change1 carries out one line of input.
func change1(chains map[string][]string, l string) error {
	if name, ok := strings.CutPrefix(l, ":"); ok {
		name, _, _ = strings.Cut(name, " ")
		chains[name] = nil
		return nil
	}
	words := strings.SplitN(l, " ", 3)
	if !has(chains, words[1]) {
		return errors.New("no such chain")
	}
	list := chains[words[1]]
	switch words[0] {
	case "-A":
		list = append(list, words[2])
	case "-I":
		list = slices.Insert(list, 0, words[2])
	case "-D":
		i := slices.Index(list, words[2])
		if i < 0 {
			return errors.New("no such rule")
		}
		list = slices.Delete(list, i, i+1)
	case "-X":
		if len(list) > 0 {
			return errors.New("not empty")
		}
		delete(chains, words[1])
		return nil
	}
	chains[words[1]] = list
	return nil
}

func (f *fakeTables) Rules(_ context.Context, table, chain string) ([]string, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["Rules"]++
	list, ok := f.tables[table][chain]
	return slices.Clone(list), ok, nil
}

func (f *fakeTables) Save(ctx context.Context, table string, do func(chain, rule string)) error {
	if f.reading != nil {
		if err := f.reading(ctx); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["Save"]++
	for _, c := range slices.Sorted(maps.Keys(f.tables[table])) {
		do(c, "")
		for _, r := range f.tables[table][c] {
			do(c, r)
		}
	}
	return nil
}

func (f *fakeTables) ChainNames(_ context.Context, table string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["ChainNames"]++
	return slices.Sorted(maps.Keys(f.tables[table])), nil
}

// String returns all tables as iptables-restore would take them.
func (f *fakeTables) String() string {
	var b bytes.Buffer
	for _, t := range slices.Sorted(maps.Keys(f.tables)) {
		fmt.Fprintf(&b, "*%s\n", t)
		for _, c := range slices.Sorted(maps.Keys(f.tables[t])) {
			fmt.Fprintf(&b, ":%s - [0:0]\n", c)
			for _, r := range f.tables[t][c] {
				fmt.Fprintf(&b, "-A %s %s\n", c, r)
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
