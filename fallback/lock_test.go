//go:build linux

package fallback

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// holdLock takes the lock of the legacy back end as another iptables does.
func holdLock(t *testing.T, file string) (release func()) {
	t.Helper()
	f, err := os.Create(file)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return func() { _ = f.Close() }
}

// A Plane that finds the xtables lock held waits for it and names it, chooses the back end that the node uses nevertheless,
// and serves all families once the lock is free. While it waits, it ends when it is told to.
func TestLockHeldAtStart(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	iptables(t, b, xtables.Legacy, "ip6tables", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
	release := holdLock(t, lockFile(b))
	p := launch(t, b, defaults(""))
	p.update(nodeObject + service("web", 1) + endpoints("web", pods[0]))
	var said string
	if !eventually((xtables.LockWait+5)*time.Second, func() bool {
		for _, f := range p.status().Families {
			if said = f.LastError; said == "" {
				return false
			}
		}
		return true
	}) || !strings.Contains(said, lockFile(b)) {
		t.Errorf("status while the lock is deferred: %q, want an error that names %s", said, lockFile(b))
	}
	release()
	p.settle()
	status := p.status()
	if status.Backend != string(xtables.Legacy) || status.Reason != "kubelet uses it" || len(status.Families) != 2 {
		t.Errorf("status: %+v", status)
	}
	for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80"} {
		packet{what: "after the lock", from: pods[1].Host, proto: "tcp", to: to, by: []string{pods[0].Name}}.check(t)
	}
	for _, f := range status.Families {
		if f.LastError != "" {
			t.Errorf("%s: the error stays: %s", f.Family, f.LastError)
		}
	}

	// A change that meets the lock is programmed once it is free; the Plane does not hang, nor blame the Service.
	release = holdLock(t, lockFile(b))
	p.update(nodeObject + service("web", 1) + endpoints("web", pods[1]))
	if !eventually((xtables.LockWait+5)*time.Second, func() bool { return strings.Contains(p.ipv4().LastError, lockFile(b)) }) {
		t.Errorf("status with the lock held later: %+v", p.ipv4())
	}
	release()
	p.settle()
	if refused := p.ipv4().Refused; len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
	packet{what: "after the second lock", from: pods[0].Host, proto: "tcp", to: "40.0.0.1:80", by: []string{pods[1].Name}}.check(t)

	p.kill()
	holdLock(t, lockFile(b))
	p = launch(t, b, defaults(xtables.Legacy))
	p.update(nodeObject + service("web", 1) + endpoints("web", pods[0]))
	time.Sleep(testbed.Patient(200 * time.Millisecond)) // any moment of the wait
	start := time.Now()
	p.ask(request{Op: "stop"})
	if took := time.Since(start); took > testbed.Patient(4*time.Second) {
		t.Errorf("it takes %v to end while the lock is held", took)
	}
}

// A large first sync that is cut off ends at once; one whose Services change meanwhile ends with those in force.
func TestFirstSyncDisturbed(t *testing.T) {
	each(t, func(t *testing.T, backend xtables.Backend) {
		b, _ := bed(t, testbed.Options{})
		o := defaults(backend)
		p := launch(t, b, o)
		p.ask(request{Op: "generate", N: 1000})
		if !eventually(20*time.Second, func() bool { return restores(t, p) > 0 }) {
			t.Fatal("nothing begins")
		}
		start := time.Now()
		p.ask(request{Op: "stop"})
		t.Logf("ended after %v", time.Since(start))
		if took := time.Since(start); took > testbed.Patient(5*time.Second) {
			t.Errorf("it takes %v to end in the middle of the first sync", took)
		}
		if n := restores(t, p); n > 0 {
			t.Errorf("%d programs are left", n)
		}
		p.kill()

		p = launch(t, b, o)
		start = time.Now()
		p.ask(request{Op: "generate", N: 1000})
		for i := range 20 {
			p.ask(request{Op: "replace", N: i * 50, To: "10.200.0.1:80"})
			time.Sleep(50 * time.Millisecond)
		}
		p.until(start, func(f FamilyStatus) bool { return f.InStep && f.Services == 1000 }, time.Minute)
	})
}

// restores counts the programs iptables-restore that a Plane runs.
func restores(t *testing.T, p *process) (n int) {
	t.Helper()
	out, _ := exec.Command("pgrep", "-P", p.pid(), "-f", "restore").Output() // it fails if there is none
	return strings.Count(string(out), "\n")
}
