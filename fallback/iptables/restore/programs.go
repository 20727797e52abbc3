//go:build linux

package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// Backend is the kernel interface that iptables uses.
type Backend string

// The back ends. Each has tables of its own: a rule in one is invisible in the other.
const (
	NFT    Backend = "nf_tables"
	Legacy Backend = "legacy"
)

// Bounds of each run of a program. A program also ends when its context does.
const (
	// runLimit is five times the measured run time of the slowest program: iptables-nft-save 1.8.9, two
	// minutes for 110,000 chains.
	runLimit = 10 * time.Minute
	// pipesLimit is how long after the program's end a process that it left behind may hold its pipes open.
	pipesLimit = time.Second
)

// programs are the iptables programs of one back end and family.
type programs struct{ iptables, restore, save string }

// dirs are the folders searched for programs; the PATH of a system service may lack some of them.
var dirs = []string{"", "/usr/sbin/", "/sbin/", "/usr/local/sbin/"}

func lookPath(name string) (string, error) {
	for _, dir := range dirs {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: not installed", name)
}

// find returns the programs of a back end: iptables-nft and so on.
func find(b Backend, f k8s.Family) (programs, error) {
	name := "iptables"
	if f == k8s.IPv6 {
		name = "ip6tables"
	}
	name += map[Backend]string{NFT: "-nft", Legacy: "-legacy"}[b]
	var found programs
	for path, name := range map[*string]string{
		&found.iptables: name, &found.restore: name + "-restore", &found.save: name + "-save",
	} {
		var err error
		if *path, err = lookPath(name); err != nil {
			return programs{}, err
		}
	}
	return found, nil
}

// errMissing is the error of run for a chain, or a table, that does not exist.
var errMissing = errors.New("there is no such chain")

// errUnprintable is the error for a chain that the programs cannot print; in a table with such a chain, also
// for one that does not exist.
var errUnprintable = errors.New("it holds what iptables cannot print")

// unprintableText ends what the programs say of such a chain or table.
const unprintableText = "is incompatible, use 'nft' tool."

// run runs iptables to its end and returns what it prints.
func (t *Tables) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.limit, t.timeoutError())
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, t.progs.iptables, append(args, "-w", strconv.Itoa(LockWait))...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, pipesLimit
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	err = failure(context.Cause(ctx), cmd.Path, err, stderr.String())
	if strings.Contains(stderr.String(), unprintableText) {
		return "", fmt.Errorf("%w: %w", errUnprintable, err)
	}
	for _, text := range []string{
		"No chain/target/match by that name", "No such file or directory", "does not exist",
	} {
		if strings.Contains(stderr.String(), text) {
			return "", fmt.Errorf("%w: %w", errMissing, err)
		}
	}
	return "", err
}

// timeoutError returns the error for a program that exceeds its time limit. It wraps ErrBusy, because the
// input may be valid.
func (t *Tables) timeoutError() error {
	return fmt.Errorf("%w: killed, because it took longer than %v", ErrBusy, t.limit)
}

// failure returns the error for a program that ended with err and printed text to stderr. It wraps ErrBusy if
// a retry may succeed without any other change.
func failure(cause error, program string, err error, text string) error {
	text = strings.Join(strings.Fields(text), " ")
	// The program was killed, so the cause says more than its exit status.
	if ended := (*exec.ExitError)(nil); cause != nil && !(errors.As(err, &ended) && ended.Exited()) {
		return fmt.Errorf("%s: %w", program, cause)
	}
	if strings.Contains(text, "xtables lock") {
		return fmt.Errorf("%s: %w: another process held the xtables lock for %d s "+
			"(find it with: fuser -v %s)", program, ErrBusy, LockWait, lockFile())
	}
	for _, busy := range []string{"Resource temporarily unavailable", "Interrupted system call"} {
		if strings.Contains(text, busy) {
			return fmt.Errorf("%s: %w: %s", program, ErrBusy, text)
		}
	}
	if text == "" {
		return fmt.Errorf("%s: %w", program, err)
	}
	return fmt.Errorf("%s: %w: %s", program, err, text)
}

// lockFile returns the file that the legacy programs lock (iptables/xshared.c, xtables_lock).
func lockFile() string {
	if file := os.Getenv("XTABLES_LOCKFILE"); file != "" {
		return file
	}
	return "/run/xtables.lock"
}
