//go:build linux

package xtables

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/k8s"
)

// LockWait is how long the programs wait for the lock that keeps iptables calls apart (legacy only), in seconds.
const LockWait = 5

// Tables are the tables of one family and back end. Its methods may be called from one goroutine at a time.
type Tables struct {
	Backend Backend
	Family  k8s.Family
	// Version is that of the programs: "1.8.9".
	Version string
	// RandomFully tells whether MASQUERADE can choose ports at random.
	RandomFully bool

	progs programs
	ipt   *iptables.IPTables
}

// Open finds the programs and looks whether the kernel has the tables.
func Open(b Backend, f k8s.Family) (*Tables, error) {
	t, err := open(b, f)
	if err != nil {
		return nil, err
	}
	if _, err := t.ipt.List("nat", "PREROUTING"); err != nil {
		return nil, fmt.Errorf("the kernel has no table nat for %s: %w", f, err)
	}
	return t, nil
}

func open(b Backend, f k8s.Family) (*Tables, error) {
	proto := iptables.ProtocolIPv4
	if f == k8s.IPv6 {
		proto = iptables.ProtocolIPv6
	}
	progs, err := find(b, proto)
	if err != nil {
		return nil, err
	}
	ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Path(progs.iptables), iptables.Timeout(LockWait))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", progs.iptables, err)
	}
	t := &Tables{Backend: b, Family: f, progs: progs, ipt: ipt, RandomFully: ipt.HasRandomFully()}
	v1, v2, v3 := ipt.GetIptablesVersion()
	t.Version = fmt.Sprintf("%d.%d.%d", v1, v2, v3)
	return t, nil
}

// InUse reports whether a table may hold anything; it does not make the kernel set one up.
func (t *Tables) InUse(table string) bool { return inUse(t.Backend, t.ipt.Proto(), table) }

// Find gives the tables of every installed back end for a family, whatever the kernel has.
func Find(f k8s.Family) (list []*Tables) {
	for _, b := range []Backend{NFT, Legacy} {
		if t, err := open(b, f); err == nil {
			list = append(list, t)
		}
	}
	return list
}

// Rules gives the rules of a chain, without "-A CHAIN"; ok is false if the chain does not exist.
func (t *Tables) Rules(table, chain string) (list []string, ok bool, err error) {
	out, err := t.ipt.List(table, chain)
	var e *iptables.Error
	if errors.As(err, &e) && missing(e) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("table %s, chain %s: %w", table, chain, err)
	}
	for _, l := range out {
		if r, ok := strings.CutPrefix(l, "-A "+chain+" "); ok {
			list = append(list, r)
		}
	}
	return list, true, nil
}

// Counters gives the rules of a chain as `iptables -v -S` prints them, "-c PACKETS BYTES" before the target; none if the
// chain does not exist.
func (t *Tables) Counters(table, chain string) ([]string, error) {
	out, err := t.ipt.ListWithCounters(table, chain)
	var e *iptables.Error
	if errors.As(err, &e) && missing(e) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("table %s, chain %s: %w", table, chain, err)
	}
	return out, nil
}

// missing reports whether an error says that a chain does not exist. iptables-nft has a misleading text for it where the
// table has never been used.
func missing(e *iptables.Error) bool {
	return e.IsNotExist() || strings.Contains(e.Error(), "is incompatible, use 'nft' tool")
}

// Save calls f for each chain of a table ("-A" not among the words, rule "" announces the chain) and each rule, in the
// order of iptables-save.
func (t *Tables) Save(ctx context.Context, table string, f func(chain, rule string)) error {
	cmd := exec.CommandContext(ctx, t.progs.save, "-t", table)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	// iptables-nft-save sorts chains by recursion and overflows the usual stack with a hundred thousand of them.
	stack := &unix.Rlimit{Cur: 512 << 20, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_STACK, stack, nil)
	readErr := parseSave(out, f)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s -t %s: %w: %s", t.progs.save, table, err, strings.TrimSpace(stderr.String()))
	}
	return readErr
}

func parseSave(r io.Reader, f func(chain, rule string)) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		l := s.Text()
		switch {
		case strings.HasPrefix(l, ":"):
			chain, _, _ := strings.Cut(l[1:], " ")
			f(chain, "")
		case strings.HasPrefix(l, "-A "):
			if chain, rule, ok := strings.Cut(l[3:], " "); ok {
				f(chain, rule)
			}
		}
	}
	return s.Err()
}
