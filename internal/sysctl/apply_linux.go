package sysctl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Apply brings the connection tracking of this network namespace in line with the settings. It returns what
// it changed, and one warning for each setting that it could not change. It writes only what differs, and
// never makes the connection table smaller. It may be called again: the kernel creates the table only when
// something needs connection tracking.
func Apply(s Settings, log *slog.Logger) (changes []Change, warnings []string) {
	warnings = kernel{root: "/", log: log, note: func(c Change) { changes = append(changes, c) }}.apply(s)
	return changes, warnings
}

// reservedPorts are ports that the kernel gives to no connection by itself, in both families:
// "8080,30000-32767".
const reservedPorts = "net.ipv4.ip_local_reserved_ports"

// ReservePorts adds the ports from lo to hi to those that the kernel gives to no connection of this network
// namespace by itself.
func ReservePorts(lo, hi int, log *slog.Logger) (Change, error) {
	return kernel{root: "/", log: log}.reservePorts(lo, hi)
}

func (k kernel) reservePorts(lo, hi int) (c Change, err error) {
	c.Name = reservedPorts
	if c.From, err = k.text(c.Name); err != nil {
		return c, err
	}
	if err := k.write(c.Name, strings.TrimPrefix(fmt.Sprintf("%s,%d-%d", c.From, lo, hi), ",")); err != nil {
		return c, fmt.Errorf("cannot add %d-%d to sysctl %s: %w", lo, hi, c.Name, err)
	}
	c.To, err = k.text(c.Name) // the kernel joins what is adjacent
	k.log.Info("sysctl set", "name", c.Name, "from", c.From, "to", c.To)
	return c, err
}

// Restore undoes changes, the last first. It leaves a setting alone that no longer has the value that was
// set. It returns a line for each setting, and the changes that could not be undone.
func Restore(changes []Change) (lines []string, failed []Change) {
	return kernel{root: "/", log: slog.New(slog.DiscardHandler)}.restore(changes)
}

func (k kernel) restore(changes []Change) (lines []string, failed []Change) {
	for _, c := range slices.Backward(changes) {
		line, err := k.undo(c)
		if err != nil {
			line, failed = err.Error(), append(failed, c)
		}
		lines = append(lines, line)
	}
	return lines, failed
}

// undo restores one setting, and returns what it did.
func (k kernel) undo(c Change) (line string, err error) {
	if c.Name != reservedPorts && !strings.HasPrefix(c.Name, netfilter) {
		return "", fmt.Errorf("sysctl %q is none that nkp sets", c.Name)
	}
	switch have, err := k.text(c.Name); {
	case err != nil:
		return "", err
	case have != c.To:
		return fmt.Sprintf("left sysctl %s at %s: something changed it after nkp had set %s",
			c.Name, shown(have), shown(c.To)), nil
	}
	if err := k.write(c.Name, c.From+"\n"); err != nil {
		return "", fmt.Errorf("cannot set sysctl %s to %s: %w", c.Name, shown(c.From), err)
	}
	return fmt.Sprintf("set sysctl %s back from %s to %s", c.Name, shown(c.To), shown(c.From)), nil
}

// shown returns a value for messages.
func shown(value string) string { return cmp.Or(value, `""`) }

// kernel is where the kernel's settings are: below root, which is / but in tests.
type kernel struct {
	root string
	log  *slog.Logger
	note func(Change) // called for each change; may be nil
}

const netfilter = "net.netfilter."

func (k kernel) apply(s Settings) (warnings []string) {
	if _, err := os.Stat(k.path(netfilter + "nf_conntrack_max")); errors.Is(err, fs.ErrNotExist) {
		return []string{"the kernel's connection tracking is not loaded (module nf_conntrack): " +
			"its size and timeouts are left alone"}
	}

	note := func(err error) {
		if err != nil {
			warnings = append(warnings, err.Error())
		}
	}

	if n := s.max(k.cpus()); n > 0 {
		note(k.grow(n))
	}

	for _, t := range []struct {
		name  string
		value int
	}{
		{"nf_conntrack_tcp_timeout_established", seconds(s.TCPEstablished)},
		{"nf_conntrack_tcp_timeout_close_wait", seconds(s.TCPCloseWait)},
		{"nf_conntrack_udp_timeout", seconds(s.UDP)},
		{"nf_conntrack_udp_timeout_stream", seconds(s.UDPStream)},
	} {
		if t.value > 0 {
			note(k.set(netfilter+t.name, t.value))
		}
	}

	if s.TCPBeLiberal {
		note(k.set(netfilter+"nf_conntrack_tcp_be_liberal", 1))
	}
	return warnings
}

// connectionsPerBucket is kube-proxy's: chains of the hash table stay short.
const connectionsPerBucket = 4

// grow makes room for n connections, in the table and in its hash. Both belong to the whole machine: another
// network namespace than the host's may only read them.
func (k kernel) grow(n int) error {
	const most, buckets = netfilter + "nf_conntrack_max", netfilter + "nf_conntrack_buckets"
	have, err := k.get(most)
	if err != nil {
		return err
	}
	if have < n && have != 0 { // 0: no limit
		if err := k.set(most, n); err != nil {
			return err
		}
	}
	if hash, err := k.get(buckets); err != nil || hash >= n/connectionsPerBucket {
		return err
	}
	return k.set(buckets, n/connectionsPerBucket)
}

// path returns the file of a setting such as net.netfilter.nf_conntrack_max.
func (k kernel) path(name string) string {
	return filepath.Join(k.root, "proc/sys", strings.ReplaceAll(name, ".", "/"))
}

// text returns the value of a setting.
func (k kernel) text(name string) (string, error) {
	data, err := os.ReadFile(k.path(name))
	if err != nil {
		return "", fmt.Errorf("cannot read sysctl %s: %w", name, reason(err))
	}
	return strings.TrimSpace(string(data)), nil
}

// get returns the value of a setting that is a number.
func (k kernel) get(name string) (int, error) {
	text, err := k.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("sysctl %s is not a number: %q", name, text)
	}
	return n, nil
}

func (k kernel) write(name, value string) error {
	if err := os.WriteFile(k.path(name), []byte(value), 0); err != nil {
		return reason(err)
	}
	return nil
}

// set writes a value if the kernel has another.
func (k kernel) set(name string, value int) error {
	have, err := k.get(name)
	if err != nil || have == value {
		return err
	}
	if err := k.write(name, strconv.Itoa(value)); err != nil {
		return fmt.Errorf("cannot set sysctl %s to %d: %w; it stays %d", name, value, err, have)
	}
	if now, err := k.get(name); err == nil {
		value = now // the kernel may round it
	}
	k.log.Info("sysctl set", "name", name, "from", have, "to", value)
	if k.note != nil {
		k.note(Change{Name: name, From: strconv.Itoa(have), To: strconv.Itoa(value)})
	}
	return nil
}

// reason takes the path off an error and says what an errno usually means here.
func reason(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w (a container that is not privileged?)", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (not root, or not the host's network namespace?)", err)
	}
	return err
}

// cpus counts the CPUs that are online. This process may be confined to fewer.
func (k kernel) cpus() int {
	data, err := os.ReadFile(filepath.Join(k.root, "sys/devices/system/cpu/online"))
	if err != nil {
		return runtime.NumCPU()
	}
	n, err := countList(strings.TrimSpace(string(data)))
	if err != nil || n < 1 {
		return runtime.NumCPU()
	}
	return n
}

// countList counts the numbers in a list such as 0-3,8,10-11.
func countList(list string) (n int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return 0, err
		}
		to, err := strconv.Atoi(last)
		if err != nil {
			return 0, err
		}
		n += to - from + 1
	}
	return n, nil
}
