//go:build linux

package nftables

import (
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/nftables/netlink"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// A table that does not fit is replaced by one transaction: no packet meets a table without Services. What is too much for one follows
// in others, and all is served then, too.
func TestTableIsReplacedAtOnce(t *testing.T) {
	testbed.Linux.Require(t)
	testbed.Isolate(t)
	o := fallback.DefaultOptions()
	o.LocalhostNodePorts, o.Log = false, slog.New(slog.DiscardHandler)
	o.Hooks.Hooks = o.Hooks.WithDefaults()
	status := new(fallback.FamilyStatus)
	in := dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)
	w, err := newWorker(testWorker(&o, in, status), Settings{}, &netlink.Group{})
	must(t, err)
	defer w.close()
	m := shapes.Many(200)
	in.Put(m, m.Everything())
	w.Round(t.Context(), w)

	nft := func(command string) string {
		t.Helper()
		out, err := exec.Command("nft", strings.Fields(command)...).CombinedOutput()
		if err != nil {
			t.Fatalf("nft %s: %v: %s", command, err, out)
		}
		return string(out)
	}
	spoil := map[string]string{
		"a hook's priority": "flush chain ip nkp filter-output ; delete chain ip nkp filter-output ; " +
			"add chain ip nkp filter-output { type filter hook output priority 7 ; }",
		"a set's properties": "add set ip nkp clients-x { type ipv4_addr ; } ; flush chain ip nkp postrouting ; delete set ip nkp hairpin ; " +
			"add set ip nkp hairpin { type ipv4_addr . ipv4_addr ; timeout 5s ; }",
		"dormant": "add table ip nkp { flags dormant ; }",
	}
	for _, most := range []int{maxReplace, 20_000} {
		for name, command := range spoil {
			nft(command)
			was, before := w.Runs, maxReplace
			maxReplace, w.unknown, w.NotUntil = most, true, time.Time{}
			w.Round(t.Context(), w)
			maxReplace = before
			if n := w.Runs - was; most == before && n != 1 || most < before && n < 2 {
				t.Errorf("%s, at most %d bytes: %d transactions", name, most, n)
			}
			if n := strings.Count(nft("list map ip nkp services"), "goto cluster-ip"); n != 200 || status.LastError != "" || !status.InStep {
				t.Errorf("%s: %d Services are served: %+v", name, n, status)
			}
			if s := nft("list chain ip nkp filter-output"); !strings.Contains(s, "priority filter") || !strings.Contains(s, "jump") {
				t.Errorf("%s: %s", name, s)
			}
			table, err := read(w.conn, k8s.IPv4)
			must(t, err)
			slots := func(p *k8s.ServicePort) rules.Ports { return w.have.ports[p.Name].slots }
			want := w.compiler.Ruleset(m, slots)
			if lines := compareTable(table, want); len(lines) > 0 || w.have.elements != len(want.Elements) {
				t.Errorf("%s: %d elements, want %d: %v", name, w.have.elements, len(want.Elements), lines)
			}
		}
	}
}

// A kernel without memory for the transaction that replaces a table gets portions, in the same step.
func TestReplaceWithoutMemory(t *testing.T) {
	testbed.Linux.Require(t)
	testbed.Isolate(t)
	o := fallback.DefaultOptions()
	o.LocalhostNodePorts, o.Log = false, slog.New(slog.DiscardHandler)
	var failed []error
	o.Hooks.Restored = func(r dataplane.Restore) {
		if r.Err != nil {
			failed = append(failed, r.Err)
		}
	}
	o.Hooks.Hooks = o.Hooks.WithDefaults()
	status := new(fallback.FamilyStatus)
	in := dataplane.NewInbox(func(...k8s.Family) {}, k8s.IPv4)
	w, err := newWorker(testWorker(&o, in, status), Settings{}, &netlink.Group{})
	must(t, err)
	defer w.close()
	m := shapes.Many(4000) // more than a portion
	in.Put(m, m.Everything())
	for range 50 {
		w.NotUntil = time.Time{}
		w.Round(t.Context(), w)
	}

	if out, err := exec.Command("nft", "add table ip nkp { flags dormant ; }").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	refuseSends(t, 2<<20)
	w.unknown, w.NotUntil = true, time.Time{}
	w.Round(t.Context(), w)
	if status.LastError != "" || !status.InStep || status.Services != 4000 || w.unknown {
		t.Errorf("after one step: %+v", status)
	}
	if len(failed) != 1 || !lacksMemory(failed[0]) {
		t.Errorf("refused transactions: %v, want one", failed)
	}
	table, err := read(w.conn, k8s.IPv4)
	must(t, err)
	want := w.compiler.Ruleset(m, func(p *k8s.ServicePort) rules.Ports { return w.have.ports[p.Name].slots })
	if lines := compareTable(table, want); len(lines) > 0 || w.have.elements != len(want.Elements) {
		t.Errorf("%d elements, want %d: %v", w.have.elements, len(want.Elements), lines)
	}
}

// refuseSends has sendto(2) with more than most bytes fail with ENOBUFS, as netlink's does without memory, on this
// thread for as long as it lives: that of the test, which testbed.Isolate has locked to it.
func refuseSends(t *testing.T, most uint32) {
	t.Helper()
	must(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	const number, length = 0, 16 + 2*8 // of struct seccomp_data: nr, and the lower half of args[2]
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SENDTO, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: length},
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: most, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.ENOBUFS)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                        // SECCOMP_RET_ALLOW
	}
	must(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
		uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})), 0, 0))
}
