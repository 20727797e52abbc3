//go:build linux

package packets

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// firstSyncSize returns how many Services the first sync below has. NKP_SERVICES=4000 is a large cluster.
func firstSyncSize() int {
	n, err := strconv.Atoi(os.Getenv("NKP_SERVICES"))
	if err != nil {
		return 1000
	}
	return n
}

// A first sync from manifests, in the midst of a large transaction of iptables: SIGTERM ends nkp within seconds and leaves no
// program behind; manifests that change come into force; /livez is green while it goes on, red while it hangs, and green again
// when all is in force.
func TestFirstSync(t *testing.T) {
	for _, backend := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			nightly.Only(t, "a first sync of a thousand Services; the tests of package fallback stop and hang small ones")
			testFirstSync(t, backend, firstSyncSize())
		})
	}
}

func testFirstSync(t *testing.T, backend xtables.Backend, n int) {
	c := newCluster(t, testbed.Options{Plane: testbed.Linux}, "--mode", "iptables", "--iptables-backend", string(backend))
	c.servePods(t)
	nowhere := func(i int) (es []discoveryv1.Endpoint) { // five endpoints on other nodes
		for e := range 5 {
			k := 5*i + e
			es = append(es, at(netip.AddrFrom4([4]byte{10, 200 + byte(k>>16), byte(k >> 8), byte(k)})))
		}
		return es
	}
	serve := func(i int, es ...discoveryv1.Endpoint) {
		s := service(nth("svc", i), vip(40, i))
		c.objects[s.Name], c.objects["e"+s.Name] = s, slice(s, 8080, es...)
	}
	remove := func(i int) { delete(c.objects, nth("svc", i)); delete(c.objects, "e"+nth("svc", i)) }
	const changes = 20
	at0, at1 := at(c.pods[0].IP4), at(c.remotes[0].IP4)
	for i := range n {
		serve(i, nowhere(i)...)
	}
	for k := range changes { // they change below
		serve(k*n/changes, at0)
	}
	c.write()
	launch := func(flags ...string) {
		t.Helper()
		c.launchBy(slices.Concat([]string{"env", "XTABLES_LOCKFILE=" + filepath.Join(c.RunDir, "xtables.lock"), c.bin, "run", "--socket", c.socket(),
			"--log-level", "debug"}, flags, c.common())...)
	}
	// midst suspends the programs that run once one has read much of a large transaction. The first sync goes on after SIGCONT only.
	midst := func() (restores []int) {
		t.Helper()
		for ctx := wait.Context(t); !slices.ContainsFunc(restores, readsMuch); time.Sleep(2 * time.Millisecond) { // it lasts for a moment
			if ctx.Err() != nil {
				t.Fatal("no program reads a large transaction")
			}
			restores = c.restores()
		}
		signal(syscall.SIGSTOP, restores)
		if strings.Contains(c.agent.Log.String(), "programmed for the first time") {
			t.Fatal("the first sync has ended already")
		}
		return restores
	}
	livez := func() (status int) {
		t.Helper()
		status, body, err := c.get(c.Node, "http://127.0.0.1:10256/livez")
		if err != nil || status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Errorf("/livez: %d %s %v", status, body, err)
		}
		return status
	}

	launch()
	reading := midst()
	if livez() != http.StatusOK {
		t.Error("/livez is red in the midst of the first sync")
	}
	signal(syscall.SIGCONT, reading)
	must(t, c.agent.Stop(syscall.SIGTERM)) // which kills what does not end
	if left := c.restores(); len(left) > 0 {
		t.Errorf("the programs %v are left", left)
	}

	services := n
	change := func(from, to int) {
		for k := from; k < to; k++ {
			switch i := k * n / changes; k % 3 {
			case 0:
				serve(i, at1)
			case 1:
				serve(i, nowhere(i)...)
				serve(n+k, at1)
				services++
			case 2:
				remove(i)
				serve(n+k, at0)
			}
			c.write()
		}
	}
	launch("--iptables-sync-period", "2s") // changes may wait for twice that
	hanging := midst()
	change(0, changes/2)
	wait.For(t, "/livez is red", func() bool { return livez() == http.StatusServiceUnavailable })
	if f := c.ipv4(t); f.InStep {
		t.Errorf("status while programs hang: %+v", f)
	}
	signal(syscall.SIGCONT, hanging)
	change(changes/2, changes)
	c.awaitSynced(t, services)
	wait.For(t, "/livez is green", func() bool { return livez() == http.StatusOK })
	c.settle()
	for k := range changes {
		switch i := k * n / changes; k % 3 {
		case 0:
			c.ask(t, c.pods[1].Host, "tcp", vip(40, i)+":80", c.remotes[0].Name)
		case 1:
			c.ask(t, c.pods[1].Host, "tcp", vip(40, n+k)+":80", c.remotes[0].Name)
		case 2:
			c.ask(t, c.pods[1].Host, "tcp", vip(40, n+k)+":80", c.pods[0].Name)
			c.unanswered(t, c.pods[1].Host, "tcp", vip(40, i)+":80", c.direct(t, c.pods[1].Host)) // it is gone
		}
	}
}

// awaitSynced waits, for as long as a large sync may take, until so many Service ports are in force.
func (c *cluster) awaitSynced(t *testing.T, services int) {
	t.Helper()
	var f fallback.FamilyStatus
	for range 5 {
		if wait.Until(t.Context(), func() error {
			if f = c.ipv4(t); !f.InStep || f.Services != services || len(f.Refused) > 0 {
				return errors.New("not in force")
			}
			return nil
		}) == nil {
			return
		}
	}
	t.Fatalf("%d Service ports are not in force: %+v", services, f)
}

// signal signals processes. One that has ended meanwhile is not missed.
func signal(s syscall.Signal, pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, s)
	}
}

// restores returns the programs iptables-restore and ip6tables-restore that nkp runs.
func (c *cluster) restores() (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.agent.Cmd.Process.Pid))
	for _, file := range tasks {
		children, _ := os.ReadFile(file) // it, and below a child, may have ended
		for _, pid := range strings.Fields(string(children)) {
			line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if n, err := strconv.Atoi(pid); err == nil && strings.Contains(string(line), "-restore") {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// readsMuch reports whether a program has read more than libraries and a small transaction: 100 kB (proc(5), io, rchar).
func readsMuch(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid)) // it may have ended
	var n int
	_, err := fmt.Sscanf(string(data), "rchar: %d", &n)
	return err == nil && n > 100_000
}

// ipv4 returns the status of the iptables data plane in IPv4; a zero one while nkp does not answer.
func (c *cluster) ipv4(t *testing.T) (f fallback.FamilyStatus) {
	t.Helper()
	out, _, _ := c.nkp("status", "--socket", c.socket(), "-o", "json")
	var s struct{ IPTables *fallback.Status }
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.IPTables == nil {
		return f
	}
	if i := slices.IndexFunc(s.IPTables.Families, func(f fallback.FamilyStatus) bool { return f.Family == "IPv4" }); i >= 0 {
		f = s.IPTables.Families[i]
	}
	return f
}
