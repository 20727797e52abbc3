//go:build linux

package rig

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// TableMemory returns how much memory of the kernel the proxy's tables take, in units of a million bytes: what the machine's kernel
// has less after they were deleted. That includes what no account of a process or cgroup shows, such as the buckets of hash tables
// and what the slab allocator rounds up. It stops the proxy, and is no statement on a machine that does other work.
func (n *Node) TableMemory(ctx context.Context) (float64, error) {
	n.Proxy.Stop()
	// Connections of earlier measurements expire, which must not be taken for the tables.
	if err := n.Node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		return 0, fmt.Errorf("flush conntrack: %w", err)
	}
	before, err := settledKernelMemory(ctx)
	if err != nil {
		return 0, err
	}
	if err := n.DeleteTables(ctx); err != nil {
		return 0, err
	}
	after, err := settledKernelMemory(ctx)
	return before - after, err
}

// DeleteTables deletes all tables of the kernel's packet filter that this kind of node has.
func (n *Node) DeleteTables(ctx context.Context) error {
	command := "nft flush ruleset"
	if n.Kind == KubeLegacy {
		// Without --noflush each restore deletes what its tables have.
		command = `printf '*%s\nCOMMIT\n' nat filter mangle >` + n.dir + "/empty && iptables-legacy-restore " + n.dir + "/empty && ip6tables-legacy-restore " + n.dir + "/empty"
	}
	if out, err := n.Node.Exec(ctx, "sh", "-c", command); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

// settledKernelMemory returns the kernel's memory once it has changed by less than 200 kB in two seconds, or after 10 s: objects are
// freed in the background, after an RCU grace period.
func settledKernelMemory(ctx context.Context) (float64, error) {
	const pause, change, calm = 200 * time.Millisecond, 0.2, 2 * time.Second
	from, err := kernelMemory()
	now, since := from, time.Now()
	for end := time.Now().Add(10 * time.Second); err == nil && time.Since(since) < calm && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
		if now, err = kernelMemory(); now-from > change || from-now > change {
			from, since = now, time.Now()
		}
	}
	return now, err
}

// kernelMemory returns what the kernel itself has allocated and cannot reclaim, in units of a million bytes: slabs, memory for each
// CPU and what vmalloc maps (proc_meminfo(5)).
func kernelMemory() (float64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, 0
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "SUnreclaim", "Percpu", "VmallocUsed":
			var kB float64
			if _, err := fmt.Sscanf(value, "%f kB", &kB); err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %q: %w", line, err)
			}
			sum += kB * 1024 / 1e6
			found++
		}
	}
	if found != 3 {
		return 0, fmt.Errorf("/proc/meminfo has %d of SUnreclaim, Percpu and VmallocUsed", found)
	}
	return sum, nil
}
