//go:build linux

package netlink

import (
	"encoding/binary"
	"errors"
	"maps"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

// truncate has the kernel cut off what it writes to a socket behind n bytes; 0: nothing arrives.
func truncate(t *testing.T, fd int, n uint32) {
	t.Helper()
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: n}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &filter}); err != nil {
		t.Fatal(err)
	}
}

func impatient(t *testing.T, c *Conn) {
	t.Helper()
	must(t, unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
}

func installed(t *testing.T, c *Conn, f k8s.Family) *rules.Ruleset {
	t.Helper()
	m := model(true)
	r := rules.NewCompiler(rules.Config{Config: serving.DefaultConfig()}, f, m).Ruleset(m, nil)
	install(t, c, r)
	return r
}

func read(c *Conn, f k8s.Family) (*Table, error) {
	t, err := c.ReadChains(f)
	if err == nil && t != nil {
		err = c.ReadElements(t)
	}
	return t, err
}

// No call waits for ever for an answer that does not come.
func TestNoAnswer(t *testing.T) {
	conn := isolated(t)
	installed(t, conn, k8s.IPv4)
	impatient(t, conn)
	truncate(t, conn.fd, 0)
	if got, err := read(conn, k8s.IPv4); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("a dump without an answer: %v, %v", got, err)
	}
	b := NewBatch(k8s.IPv4)
	b.Add(rules.Elements{{Set: rules.ClusterIPs, Key: "\x09\x09\x09\x09"}: {}})
	if err := conn.Commit(b); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("a transaction without an answer: %v", err)
	}
}

// A dump of which a part is lost is an error, wherever it ends, and never a table that has less.
func TestPartialDump(t *testing.T) {
	conn := isolated(t)
	want := installed(t, conn, k8s.IPv4)
	impatient(t, conn)
	partial := 0
	for n := uint32(1); n < 1<<16; n += 1 + n/3 {
		truncate(t, conn.fd, n)
		if got, err := read(conn, k8s.IPv4); err != nil {
			partial++
		} else if got == nil || !maps.Equal(got.Elements, want.Elements) {
			t.Errorf("messages of %d bytes at most: a table with a part of the elements, without an error", n)
		}
	}
	if partial < 10 {
		t.Errorf("%d of the dumps were partial", partial)
	}
	truncate(t, conn.fd, 1<<17)
	if got, err := read(conn, k8s.IPv4); err != nil || !maps.Equal(got.Elements, want.Elements) {
		t.Errorf("once messages arrive again: %v", err)
	}
}

// Messages of other processes are not taken for the kernel's.
func TestForeignSender(t *testing.T) {
	other := isolated(t)
	forged := make([]byte, headerSize+4)
	binary.NativeEndian.PutUint32(forged, uint32(len(forged)))
	binary.NativeEndian.PutUint16(forged[4:], unix.NLMSG_ERROR)
	conn, err := Open() // in the namespace of the other
	must(t, err)
	defer conn.Close()
	must(t, unix.Sendto(other.fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: conn.port}))
	if n, err := conn.receive(unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("received %d bytes of another process: %v", n, err)
	}
}

// A change of another table during every dump interrupts each, and does not prevent that the table is read: two dumps in a row that have
// the same elements are enough. The second can differ from the first, because the kernel's hash tables grow in the background after the
// elements were added (lib/rhashtable.c, rht_deferred_worker), and a dump that goes on in a table of another size lists some twice.
func TestInterruptedDumps(t *testing.T) {
	conn := isolated(t)
	installed(t, conn, k8s.IPv4)
	installed(t, conn, k8s.IPv6)
	large := NewBatch(k8s.IPv4)
	elements := rules.Elements{}
	for i := range 5_000 { // more than one message of a dump
		elements[rules.Ref{Set: rules.ClusterIPs, Key: string([]byte{10, 0, byte(i >> 8), byte(i)})}] = rules.Value{}
	}
	large.Add(elements)
	must(t, conn.Commit(large))
	writer, err := Open()
	must(t, err)
	defer writer.Close()

	dumps, items, keys := 1, 0, map[string]bool{}
	err = conn.elements(k8s.IPv4, rules.Sets[rules.ClusterIPs].Name, func() { dumps, items = dumps+1, 0; clear(keys) }, func(b []byte) {
		keys[string(dataValue(b, unix.NFTA_SET_ELEM_KEY))] = true
		if items++; items == 1 {
			b := NewBatch(k8s.IPv6)
			b.Add(rules.Elements{{Set: rules.NodeIPs, Key: strings.Repeat(string(rune(dumps)), 16)}: {}})
			must(t, writer.Commit(b))
		}
	})
	if err != nil || dumps < 2 || len(keys) < len(elements) {
		t.Errorf("%d dumps, %d elements of %d: %v", dumps, len(keys), len(elements), err)
	}
}

// Objects that differ from one dump to the next are an error in the end, not a mixture of both.
func TestInterruptedByOwnTable(t *testing.T) {
	conn := isolated(t)
	installed(t, conn, k8s.IPv4)
	writer, err := Open()
	must(t, err)
	defer writer.Close()
	n := 0
	change := func() { // between two messages of a dump
		b := NewBatch(k8s.IPv4)
		n++
		b.Add(rules.Elements{{Set: rules.NodeIPs, Key: string([]byte{11, 0, byte(n >> 8), byte(n)})}: {}})
		must(t, writer.Commit(b))
	}
	for range 1_000 {
		change()
	}
	dumps, items := 1, 0
	err = conn.elements(k8s.IPv4, rules.Sets[rules.NodeIPs].Name, func() { dumps++ }, func([]byte) {
		if items++; items%100 == 0 {
			change()
		}
	})
	if !errors.Is(err, ErrInterrupted) || dumps != readTries {
		t.Errorf("%d dumps: %v", dumps, err)
	}
}

// Where notifications are lost, a Watch reports a change, because it may have been of nkp's table.
func TestLostNotifications(t *testing.T) {
	conn := isolated(t)
	var g Group
	w, err := g.Watch(k8s.IPv4, conn.Port())
	must(t, err)
	defer w.Close()
	err = w.raw.Control(func(fd uintptr) {
		// The kernel's least buffer, and receive without reading.
		if err := errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	installed(t, conn, k8s.IPv6)                                  // neither of the family nor of another program: what is received of it does not count
	if err := w.member(unix.NETLINK_ADD_MEMBERSHIP); err != nil { // begins to read
		t.Fatal(err)
	}
	wait.Receive(t, "a report of lost notifications", w.Changed)
}

// The kernel is asked for each feature, and nothing is changed. What it lacks is named; so is a missing permission.
func TestProbe(t *testing.T) {
	conn := isolated(t)
	unknown := rules.Feature{Name: "translation of thoughts", Since: "9.9", Chains: []rules.Chain{{Name: "c", Hook: rules.Hook{Type: "thought", Hook: "output"}}}}
	for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		if err := conn.Probe(f, rules.Features()); err != nil {
			t.Errorf("this kernel: %v", err)
		}
		for _, x := range rules.Features() { // each stands alone
			if err := conn.Probe(f, []rules.Feature{x}); err != nil {
				t.Errorf("this kernel: %v", err)
			}
		}
		err := conn.Probe(f, append(rules.Features(), unknown))
		if err == nil || !strings.Contains(err.Error(), "lacks translation of thoughts, which is in Linux since 9.9") {
			t.Errorf("a feature that no kernel has: %v", err)
		}
	}
	if got := program(t, "list", "ruleset"); got != "" {
		t.Errorf("the probe left:\n%s", got)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err == nil {
		err = unix.Capset(&header, &data[0]) // of this thread, which ends with the test
	}
	must(t, err)
	weak, err := Open()
	if err == nil {
		err = weak.Probe(k8s.IPv4, rules.Features())
		weak.Close()
	}
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "NET_ADMIN") {
		t.Errorf("without the capability: %v", err)
	}
}
