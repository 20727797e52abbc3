package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Apply brings the connection tracking of this network namespace in line with the settings and gives one warning for
// each that it could not. It writes only what differs, and never makes the connection table smaller. It may be called
// again; a table that is not there yet is, once something needs connection tracking.
func Apply(s Settings, log *slog.Logger) (warnings []string) {
	return kernel{root: "/", log: log}.apply(s)
}

// kernel is where the kernel's settings are: below root, which is / but in tests.
type kernel struct {
	root string
	log  *slog.Logger
}

const netfilter = "net.netfilter."

func (k kernel) apply(s Settings) (warnings []string) {
	if _, err := os.Stat(k.path(netfilter + "nf_conntrack_max")); errors.Is(err, fs.ErrNotExist) {
		return []string{"the kernel's connection tracking is not loaded (module nf_conntrack): its size and timeouts are left alone"}
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

// grow makes room for n connections, in the table and in its hash. Both belong to the whole machine: another network
// namespace than the host's may only read them.
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

func (k kernel) get(name string) (int, error) {
	data, err := os.ReadFile(k.path(name))
	if err != nil {
		return 0, fmt.Errorf("cannot read sysctl %s: %w", name, reason(err))
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("sysctl %s is not a number: %q", name, data)
	}
	return n, nil
}

// set writes a value if the kernel has another.
func (k kernel) set(name string, value int) error {
	have, err := k.get(name)
	if err != nil || have == value {
		return err
	}
	if err := os.WriteFile(k.path(name), []byte(strconv.Itoa(value)), 0); err != nil {
		return fmt.Errorf("cannot set sysctl %s to %d: %w; it stays %d", name, value, reason(err), have)
	}
	k.log.Info("sysctl set", "name", name, "from", have, "to", value)
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
