//go:build linux

package packets

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// What `plan -o iptables` prints is what iptables-restore and ip6tables-restore take, in an empty network namespace.
func TestPlanForIPTables(t *testing.T) {
	nightly.Only(t, "the suites of iptables install such rules")
	bed := testbed.Start(t, testbed.Options{Plane: testbed.Linux})
	bin, err := testbed.NKP()
	must(t, err)
	c := &cluster{t: t, bin: bin}
	for _, sample := range []string{"guestbook.yaml", "k3s-traefik.yaml", "nsx-sample.yaml"} {
		out := c.local("plan", "--manifests", filepath.Join(samples, sample), "-o", "iptables", "--cluster-cidr", "10.42.0.0/16,fd00::/16")
		if same := c.local("plan", "--manifests", filepath.Join(samples, sample), "--mode", "iptables", "--cluster-cidr", "10.42.0.0/16,fd00::/16"); same != out {
			t.Errorf("%s: --mode iptables prints something else than -o iptables", sample)
		}
		four, six, ok := strings.Cut(out, "# ip6tables\n")
		if !ok || !strings.Contains(four, "KUBE-SEP-") {
			t.Fatalf("%s: not the rules of both families:\n%s", sample, out)
		}
		for program, rules := range map[string]string{"iptables-restore": four, "ip6tables-restore": six} {
			file := filepath.Join(t.TempDir(), "rules")
			must(t, os.WriteFile(file, []byte(rules), 0o644))
			if out, err := bed.Node.Exec(t.Context(), program, "--noflush", file); err != nil {
				t.Errorf("%s: %s: %v\n%s", sample, program, err, out)
			}
		}
		saved, err := bed.Node.Exec(t.Context(), "iptables-save", "-t", "nat")
		must(t, err)
		if n, want := strings.Count(saved, "DNAT --to-destination"), strings.Count(four, "DNAT --to-destination"); n < want {
			t.Errorf("%s: %d of %d endpoints are installed", sample, n, want)
		}
	}
}

// What `plan -o hcn` prints is JSON with a load balancer for each frontend, on any system.
func TestPlanForHNS(t *testing.T) {
	bin, err := testbed.NKP()
	must(t, err)
	c := &cluster{t: t, bin: bin}
	var plan struct {
		LoadBalancers []struct{ FrontendVIPs []string }
	}
	out := c.local("plan", "--manifests", filepath.Join(samples, "whoami-windows.yaml"), "-o", "hcn", "--source-vip", "100.244.206.66")
	must(t, json.Unmarshal([]byte(out), &plan))
	if len(plan.LoadBalancers) == 0 || len(plan.LoadBalancers[0].FrontendVIPs) != 1 || plan.LoadBalancers[0].FrontendVIPs[0] != "10.99.234.145" {
		t.Errorf("the load balancer of 10.99.234.145 is not there:\n%s", out)
	}
}
