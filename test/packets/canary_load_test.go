//go:build linux

package packets

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// canaryTimeVar is how long TestCanaryUnderLoad loads the node: a duration such as 1h.
const canaryTimeVar = "NKP_CANARY_TIME"

// Canaries give no false alarm on a busy node: beside processes that take all of the CPU, clients that open connections to Services
// all the time, and endpoints that change all the time.
func TestCanaryUnderLoad(t *testing.T) {
	nightlyOr(t, canaryTimeVar, "a minute of load")
	period := time.Minute
	if text := os.Getenv(canaryTimeVar); text != "" {
		var err error
		period, err = time.ParseDuration(text)
		must(t, err)
	}

	c := newCluster(t, testbed.Options{})
	web, dns := service("web", "40.0.0.1"), service("dns", "fd00:40::1", protocol(v1.ProtocolUDP))
	sometimes := service("sometimes", "40.0.0.2")
	c.begin(web, slice(web, 8080, ats(c.pods[1].IP4, c.remotes[0].IP4)...), dns, slice(dns, 8080, ats(c.pods[1].IP6, c.remotes[0].IP6)...),
		sometimes, slice(sometimes, 8080, at(c.pods[1].IP4)))
	c.canaryPassed(t, 1)

	for range runtime.NumCPU() {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		must(t, c.External.Start(busy))
		t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	}
	deadline := time.Now().Add(period)
	var load sync.WaitGroup
	var connections, datagrams, failed, changes atomic.Int64
	load.Go(func() {
		for time.Now().Before(deadline) {
			who, errs := c.pods[0].Many(c.ctx, 200, 16, "40.0.0.1:80")
			for _, n := range who {
				connections.Add(int64(n))
			}
			failed.Add(int64(len(errs)))
		}
	})
	load.Go(func() {
		for time.Now().Before(deadline) {
			if _, err := c.pods[2].Ask(c.ctx, "udp", "[fd00:40::1]:80"); err != nil {
				failed.Add(1)
			}
			datagrams.Add(1)
		}
	})
	for time.Now().Before(deadline) {
		time.Sleep(min(time.Second, time.Until(deadline)))
		changes.Add(1)
		c.put(slice(sometimes, 8080, at([]*testbed.Pod{c.pods[1], c.remotes[0]}[changes.Load()%2].IP4)))
	}
	load.Wait()

	alarms := strings.Count(c.agent.Log.String(), "no packet of nkp's own passes the data path")
	t.Logf("%v of load: %d connections, %d datagrams, %d changes, %d connections and datagrams failed; %d alarms",
		period, connections.Load(), datagrams.Load(), changes.Load(), failed.Load(), alarms)
	if alarms > 0 {
		t.Errorf("%d false alarms", alarms)
	}
	if connections.Load() == 0 || datagrams.Load() == 0 {
		t.Error("there was no load")
	}
	for _, v := range c.status(t).Canary {
		t.Logf("%s, %s: %v", v.Plane, v.Family, v.Sent)
		if v.Sent["passed"] <= v.Sent["lost"]+v.Sent["full"]+v.Sent["unknown"] { // else they would show nothing
			t.Errorf("%s, %s: canaries show nothing: %v", v.Plane, v.Family, v.Sent)
		}
	}
}

// cpuTime returns the processor time that all threads of a process have used.
func cpuTime(t *testing.T, pid int) (total time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	must(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		var ns int64
		_, err = fmt.Sscan(string(text), &ns)
		must(t, err)
		total += time.Duration(ns)
	}
	return total
}

// Canaries take at most a thousandth of a core, of nkp and the switch together. One in five seconds would be lost among what else both
// do, so the same program is measured with a period a hundred times as short, beside one with a period so long that there are none.
func TestCanaryCost(t *testing.T) {
	nightlyOr(t, canaryTimeVar, "it builds nkp twice")
	if onKernelDatapath() {
		t.Skip("numbers of an emulated machine mean nothing")
	}
	const often, measured = dataplane.CanaryPeriod / 100, 15 * time.Second
	source, err := filepath.Abs("../../internal/dataplane/canary.go")
	must(t, err)
	text, err := os.ReadFile(source)
	must(t, err)
	const constant = "const CanaryPeriod = 5 * time.Second"
	if !strings.Contains(string(text), constant) {
		t.Fatalf("%s has no %q", source, constant)
	}

	var used [2]time.Duration
	var canaries uint64
	var each int // how many there are in a period: of both families, and of each data plane
	for i, period := range []time.Duration{time.Hour, often} {
		dir := t.TempDir()
		changed, overlay, bin := filepath.Join(dir, "canary.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "nkp")
		other := fmt.Sprintf("const CanaryPeriod = %d * time.Nanosecond", period)
		must(t, os.WriteFile(changed, []byte(strings.Replace(string(text), constant, other, 1)), 0o600))
		replace, err := json.Marshal(map[string]map[string]string{"Replace": {source: changed}})
		must(t, err)
		must(t, os.WriteFile(overlay, replace, 0o600))
		if out, err := exec.Command("go", "build", "-C", "../..", "-overlay", overlay, "-o", bin, ".").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v: %s", err, out)
		}

		t.Run(period.String(), func(t *testing.T) {
			c := newCluster(t, testbed.Options{})
			c.bin = bin
			c.begin()
			both := func() time.Duration {
				return cpuTime(t, c.agent.Cmd.Process.Pid) + cpuTime(t, c.VswitchdPID())
			}
			passed := func() (n uint64) {
				for _, v := range c.status(t).Canary {
					n += v.Sent["passed"]
				}
				return n
			}
			n, before := passed(), both()
			time.Sleep(measured)
			used[i] = both() - before
			canaries, each = passed()-n, len(c.status(t).Canary)
		})
	}
	if canaries == 0 {
		t.Fatal("no canary passed")
	}
	cost := (used[1] - used[0]) / time.Duration(canaries)
	share := float64(time.Duration(each)*cost) / float64(dataplane.CanaryPeriod)
	t.Logf("%d canaries in %v: %v of CPU time, without any %v: %v each; %d in %v are %.3f %% of a core",
		canaries, measured, used[1], used[0], cost, each, dataplane.CanaryPeriod, 100*share)
	if share > 0.001 {
		t.Errorf("canaries take %.3f %% of a core, want 0.1 at most", 100*share)
	}
}
