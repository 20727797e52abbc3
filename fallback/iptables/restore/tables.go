//go:build linux

package restore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/k8s"
)

// LockWait is how long the programs wait for the lock that serializes iptables calls (legacy only), in
// seconds.
const LockWait = 5

// Tables are the tables of one family and back end. Its methods may be called from one goroutine at a time.
type Tables struct {
	Backend Backend
	Family  k8s.Family
	// Version is that of the programs: "1.8.9".
	Version string
	// RandomFully reports whether MASQUERADE can choose ports at random.
	RandomFully bool
	// Progress, if set, is called while and when the tables are read.
	Progress func()

	progs programs
	limit time.Duration // of each run of a program
}

// Open finds the programs and checks that the kernel has the tables. The error wraps ErrBusy if that could
// not be checked now.
func Open(ctx context.Context, b Backend, f k8s.Family) (*Tables, error) {
	t, err := openTables(ctx, b, f)
	if err != nil {
		return nil, err
	}
	// A chain that iptables cannot print holds something, so the kernel has the table.
	if _, err := t.run(ctx, "-t", "nat", "-S", "PREROUTING"); errors.Is(err, errUnprintable) {
		return t, nil
	} else if errors.Is(err, ErrBusy) {
		return nil, fmt.Errorf("read table nat for %s: %w", f, err)
	} else if err != nil {
		return nil, fmt.Errorf("the kernel has no table nat for %s: %w", f, err)
	}
	return t, nil
}

// installedTables returns tables whose programs are installed. Their version is not known.
func installedTables(b Backend, f k8s.Family) (*Tables, error) {
	progs, err := find(b, f)
	if err != nil {
		return nil, err
	}
	return &Tables{Backend: b, Family: f, RandomFully: true, progs: progs, limit: runLimit}, nil
}

func openTables(ctx context.Context, b Backend, f k8s.Family) (*Tables, error) {
	t, err := installedTables(b, f)
	if err != nil {
		return nil, err
	}
	ipt, err := t.probe(ctx)
	if err != nil {
		return nil, err
	}
	v1, v2, v3 := ipt.GetIptablesVersion()
	t.Version, t.RandomFully = fmt.Sprintf("%d.%d.%d", v1, v2, v3), ipt.HasRandomFully()
	return t, nil
}

func (t *Tables) progress() {
	if t.Progress != nil {
		t.Progress()
	}
}

// probe has go-iptables detect the version and features of the programs. It takes no lock. go-iptables cannot
// end a program that hangs, so probe stops waiting for it.
func (t *Tables) probe(ctx context.Context) (*iptables.IPTables, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.limit, t.timeoutError())
	defer cancel()
	proto := iptables.ProtocolIPv4
	if t.Family == k8s.IPv6 {
		proto = iptables.ProtocolIPv6
	}
	type result struct {
		ipt *iptables.IPTables
		err error
	}
	done := make(chan result, 1)
	go func() { // ends with the program
		ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Path(t.progs.iptables))
		done <- result{ipt, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, fmt.Errorf("%s: %w", t.progs.iptables, r.err)
		}
		return r.ipt, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", t.progs.iptables, context.Cause(ctx))
	}
}

// InUse reports whether a table may hold anything. It does not make the kernel create the table, as reading a
// legacy table that was never used does.
func (t *Tables) InUse(table string) bool {
	if t.Backend == NFT {
		return true
	}
	file := "/proc/net/ip_tables_names"
	if t.Family == k8s.IPv6 {
		file = "/proc/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(names)), table)
}

// Find returns the tables of every installed back end for a family, also those that the kernel does not
// support.
func Find(ctx context.Context, f k8s.Family) (list []*Tables) {
	for _, b := range []Backend{NFT, Legacy} {
		if t, err := openTables(ctx, b, f); err == nil {
			list = append(list, t)
		}
	}
	return list
}

// Rules returns the rules of a chain, without "-A CHAIN"; ok is false if the chain does not exist. One of
// Services that iptables cannot print counts as missing, so that it is written anew; in another one some
// rules may be Unprintable.
func (t *Tables) Rules(ctx context.Context, table, chain string) (list []string, ok bool, err error) {
	defer t.progress()
	out, err := t.run(ctx, "-t", table, "-S", chain)
	if errors.Is(err, errUnprintable) {
		return t.kernelRules(table, chain)
	} else if errors.Is(err, errMissing) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("table %s, chain %s: %w", table, chain, err)
	}
	for l := range strings.Lines(out) {
		if r, ok := strings.CutPrefix(strings.TrimSuffix(l, "\n"), "-A "+chain+" "); ok {
			list = append(list, r)
		}
	}
	return list, true, nil
}

// Chains returns all chains of a table with their rules in order, without "-A CHAIN".
func (t *Tables) Chains(ctx context.Context, table string) (map[string][]string, error) {
	chains := map[string][]string{}
	err := t.Save(ctx, table, func(chain, rule string) {
		if rule == "" {
			chains[chain] = nil
			return
		}
		chains[chain] = append(chains[chain], rule)
	})
	return chains, err
}

// Counters returns the rules of a chain as `iptables -v -S` prints them, "-c PACKETS BYTES" before the
// target; none if the chain does not exist.
func (t *Tables) Counters(ctx context.Context, table, chain string) ([]string, error) {
	out, err := t.run(ctx, "-t", table, "-v", "-S", chain)
	if errors.Is(err, errMissing) || errors.Is(err, errUnprintable) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("table %s, chain %s: %w", table, chain, err)
	}
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n"), nil
}

// Save calls f for each chain of a table (with rule "") and for each of its rules (without "-A CHAIN"), in
// the order of iptables-save. A table that iptables cannot print is read chain by chain, as by Rules.
func (t *Tables) Save(ctx context.Context, table string, f func(chain, rule string)) error {
	defer t.progress()
	err := t.save(ctx, table, func(chain, rule string) {
		t.progress()
		f(chain, rule)
	})
	if !errors.Is(err, errUnprintable) {
		return err
	}
	names, err := t.ChainNames(ctx, table)
	for _, name := range names {
		list, ok, err := t.Rules(ctx, table, name)
		if err != nil {
			return err
		}
		if ok {
			f(name, "")
		}
		for _, r := range list {
			f(name, r)
		}
	}
	return err
}

// SaveCounted calls f for each rule of a table, with what it has counted. A table that iptables cannot print
// is an error.
func (t *Tables) SaveCounted(
	ctx context.Context, table string, f func(chain, rule string, packets, bytes uint64),
) error {
	return t.save(ctx, table, func(chain, rule string) {
		counters, rule, ok := strings.Cut(rule, "] ")
		var packets, bytes uint64
		if _, err := fmt.Sscanf(counters, "[%d:%d", &packets, &bytes); ok && err == nil {
			f(chain, rule, packets, bytes)
		}
	}, "-c")
}

func (t *Tables) save(
	ctx context.Context, table string, f func(chain, rule string), options ...string,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, t.limit, t.timeoutError())
	defer cancel()
	r, w := io.Pipe()
	defer r.Close() // what the program writes after a line that is too long fails
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, t.progs.save, append(options, "-t", table)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w, &stderr, pipesLimit
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", t.progs.save, err)
	}
	// iptables-nft-save sorts chains recursively and overflows the default stack with a hundred thousand of
	// them.
	stack := &unix.Rlimit{Cur: 512 << 20, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_STACK, stack, nil)
	go func() { // ends with the program
		err := cmd.Wait()
		if err != nil {
			err = failure(context.Cause(ctx), cmd.Path+" -t "+table, err, stderr.String())
		}
		w.CloseWithError(err)
	}()
	return parseSave(r, f)
}

func parseSave(r io.Reader, f func(chain, rule string)) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		l, counters := s.Text(), ""
		if strings.HasPrefix(l, "[") { // with -c, before each rule: [PACKETS:BYTES]
			i := strings.Index(l, "-A ")
			counters, l = l[:max(i, 0)], l[max(i, 0):]
		}
		switch {
		case strings.HasPrefix(l, ":"):
			chain, _, _ := strings.Cut(l[1:], " ")
			f(chain, "")
		case strings.HasPrefix(l, "-A "):
			if chain, rule, ok := strings.Cut(l[3:], " "); ok {
				f(chain, counters+rule)
			}
		case strings.HasPrefix(l, "# Table ") && strings.HasSuffix(l, unprintableText):
			return errUnprintable // it has printed nothing else
		}
	}
	return s.Err()
}
