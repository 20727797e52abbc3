//go:build linux

package fallback_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A socket that no answer arrives at is named in the status and replaced, and what had changed is in force: whether the change itself
// was not answered, or a look.
func TestNFTNoAnswer(t *testing.T) {
	testbed.Linux.Require(t)
	for name, period := range map[string]time.Duration{"while it compares often": defaults(onNFTables).SyncPeriod, "by notifications alone": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nftNoAnswer(t, period)
		})
	}
}

func nftNoAnswer(t *testing.T, period time.Duration) {
	b, pods := bed(t, testbed.Options{})
	o := defaults(onNFTables)
	o.SyncPeriod = period
	manifests := func(to ...*testbed.Pod) string { return nodeObject + service("web", 1) + endpoints("web", to...) }
	p := start(t, b, o, manifests(pods[0]))
	for _, to := range pods[1:] {
		if n := testbed.Deafen(t, p.cmd.Process.Pid); n < 4 { // for each family, one for changes and one for notifications
			t.Fatalf("%d sockets", n)
		}
		failures, logged := p.failures(), p.logged("did not answer")
		p.update(manifests(to))
		wait.For(t, "a failure that says that the kernel does not answer", func() bool {
			for _, f := range p.status().Families {
				if f.LastError != "" && (f.InStep || !strings.Contains(f.LastError, "did not answer")) {
					t.Errorf("in step %t, last error %q", f.InStep, f.LastError)
				}
			}
			return p.failures() > failures && p.logged("did not answer") > logged
		})
		p.settle()
		for range 3 {
			if a, err := pods[0].Ask(t.Context(), "tcp", "40.0.0.1:80"); err != nil || a.Pod != to.Name {
				t.Errorf("answered by %q, want %s: %v", a.Pod, to.Name, err)
			}
		}
		for _, f := range p.status().Families {
			if f.LastError != "" {
				t.Errorf("in step, with an error: %s", f.LastError)
			}
		}
	}
	inNFTables(t, b, "delete", "table", "ip", "nkp") // the new sockets receive notifications, too
	p.settle()
}

// failures returns how often a family could not be programmed or read.
func (p *process) failures() (n int) {
	p.t.Helper()
	for _, f := range p.status().Families {
		n += f.Failures
	}
	return n
}

// Another program's objects in nkp's table do not keep Services from being served, and those that can lead packets elsewhere are gone.
func TestNFTHostileTable(t *testing.T) {
	testbed.Linux.Require(t)
	b, pods := bed(t, testbed.Options{})
	o := defaults(onNFTables)
	o.SyncPeriod = time.Hour // notifications alone
	long := strings.Repeat("x", 120)
	manifests := func(n int) string {
		return nodeObject + service("web", 1, "type: NodePort") + endpoints("web", pods[:n]...)
	}
	p := start(t, b, o, manifests(1))
	for what, script := range map[string]string{
		"map that leads to a foreign chain": `add chain ip nkp mine
			add rule ip nkp mine drop
			add map ip nkp m { type ipv4_addr : verdict ; elements = { 10.0.0.11 : goto mine, 10.0.0.12 : jump external } ; }
			insert rule ip nkp services ip saddr vmap @m`,
		"dormant table":           "add table ip nkp { flags dormant ; }",
		"policy drop":             "add chain ip nkp filter-input { type filter hook input priority 0 ; policy drop ; }",
		"foreign hook":            "add chain ip nkp mine { type filter hook prerouting priority -300 ; policy drop ; }",
		"foreign spread":          "add chain ip nkp spread-2\nadd rule ip nkp spread-2 drop",
		"unknown objects":         "add counter ip nkp c\nadd quota ip nkp q { over 1 bytes ; }\nadd chain ip nkp mine\nadd rule ip nkp mine quota name q drop\ninsert rule ip nkp services jump mine",
		"overlong user data":      "add set ip nkp s { type ipv4_addr ; comment \"" + long + "\" ; }\nadd chain ip nkp mine { comment \"" + long + "\" ; }\nadd rule ip nkp services return comment \"" + long + "\"",
		"anonymous sets and maps": "insert rule ip nkp services ip saddr { 10.0.0.11, 10.0.0.12 } drop\ninsert rule ip nkp services tcp dport vmap { 80 : drop }",
	} {
		t.Run(what, func(t *testing.T) {
			file := t.TempDir() + "/script"
			must(t, os.WriteFile(file, []byte(script+"\n"), 0o600))
			inNFTables(t, b, "-f", file)
			wait.NoError(t, "the foreign objects to be gone", func() error {
				s := inNFTables(t, b, "list", "table", "ip", "nkp")
				for _, foreign := range []string{"mine", "dormant", "policy drop", long} {
					if strings.Contains(s, foreign) {
						return fmt.Errorf("%s is there:\n%s\n%+v", foreign, s, p.ipv4())
					}
				}
				return nil
			})
			for _, n := range []int{2, 1} { // changes go on
				p.sync(manifests(n))
				for _, from := range []*testbed.Host{pods[0].Host, pods[2].Host, b.Node} {
					if _, err := from.Ask(t.Context(), "tcp", "40.0.0.1:80"); err != nil {
						t.Errorf("%d endpoints, from %s: %v", n, from.Name, err)
					}
				}
			}
		})
	}
}
