//go:build linux

package fallback_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A Plane that finds the xtables lock held waits for it and names it, chooses the back end that the node uses nevertheless,
// and serves all families once the lock is free. While it waits, it ends when it is told to.
func TestLockHeldAtStart(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	inIPTables(t, b, restore.Legacy, "ip6tables", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
	release := testbed.HoldLock(t, lockFile(b))
	p := launch(t, b, defaults(""))
	p.update(nodeObject + service("web", 1) + endpoints("web", pods[0]))
	wait.NoError(t, "a status that names the lock", func() error {
		for _, f := range p.status().Families {
			if !strings.Contains(f.LastError, lockFile(b)) {
				return fmt.Errorf("%s: %q", f.Family, f.LastError)
			}
		}
		return nil
	})
	release()
	p.settle()
	status := p.status()
	if status.Backend != string(restore.Legacy) || status.Reason != "kubelet uses it" || len(status.Families) != 2 {
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
	release = testbed.HoldLock(t, lockFile(b))
	p.update(nodeObject + service("web", 1) + endpoints("web", pods[1]))
	p.until("a status that names the lock", func(f fallback.FamilyStatus) bool { return strings.Contains(f.LastError, lockFile(b)) })
	release()
	p.settle()
	if refused := p.ipv4().Refused; len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
	packet{what: "after the second lock", from: pods[0].Host, proto: "tcp", to: "40.0.0.1:80", by: []string{pods[1].Name}}.check(t)

	p.kill()
	testbed.HoldLock(t, lockFile(b))
	p = launch(t, b, defaults(restore.Legacy))
	p.update(nodeObject + service("web", 1) + endpoints("web", pods[0]))
	wait.For(t, "a program that waits for the lock", func() bool { return testbed.WaitsForLock(t, lockFile(b)) })
	p.ask(request{Op: "stop"}) // it would wait for ever: the lock stays held
	if n := p.programs(); n > 0 {
		t.Errorf("%d programs are left", n)
	}
}

// A first sync that is cut off while programs run ends without them; one whose Services change meanwhile ends with those in force.
func TestFirstSyncDisturbed(t *testing.T) {
	each(t, func(t *testing.T, backend restore.Backend) {
		const services = 300
		b, _ := bed(t, testbed.Options{})
		o := defaults(backend)
		dir := t.TempDir()
		infix := map[restore.Backend]string{restore.NFT: "-nft", restore.Legacy: "-legacy"}[backend]
		for _, program := range []string{"iptables" + infix + "-restore", "ip6tables" + infix + "-restore"} {
			real, err := exec.LookPath(program)
			must(t, err)
			// The fourth hangs, and all after it.
			script := fmt.Sprintf("#!/bin/sh\necho >>%[1]s/runs\n[ $(wc -l <%[1]s/runs) -gt 3 ] && exec sleep 1000\nexec %s \"$@\"\n", dir, real)
			must(t, os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755))
		}
		p := launchAs(t, b, o, "env", "PATH="+dir+":"+os.Getenv("PATH"), os.Args[0])
		p.ask(request{Op: "generate", N: services})
		wait.For(t, "a program that hangs", func() bool {
			runs, err := os.ReadFile(filepath.Join(dir, "runs"))
			return err == nil && len(runs) > 3
		})
		p.ask(request{Op: "stop"}) // it would wait for ever
		if n := p.programs(); n > 0 {
			t.Errorf("%d programs are left", n)
		}
		if f := p.ipv4(); f.InStep {
			t.Errorf("the first sync was not cut off: %+v", f)
		}
		p.kill()

		p = launch(t, b, o)
		p.ask(request{Op: "generate", N: services})
		for i := range 20 {
			p.ask(request{Op: "replace", N: i * services / 20, To: "10.200.0.1:80"})
			before := p.ipv4().Transactions
			p.until("a transaction, or the end of the sync", func(f fallback.FamilyStatus) bool { return f.InStep || f.Transactions > before })
		}
		p.until("the end of the sync", func(f fallback.FamilyStatus) bool { return f.InStep && f.Services == services })
		p.settle()
	})
}

// programs counts the programs that a Plane runs.
func (p *process) programs() (n int) {
	p.t.Helper()
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(p.cmd.Process.Pid)).Output() // it fails if there is none
	return strings.Count(string(out), "\n")
}
