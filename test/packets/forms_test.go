//go:build linux

package packets

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// samples are the manifests that the model's own tests read, too.
const samples = "../../k8s/testdata/cases"

// variety makes n Services of all kinds, with their slices.
func (c *cluster) variety(n int) {
	rng := rand.New(rand.NewPCG(11, 12))
	for i := range n {
		clusterIP := vip(40, i)
		v6 := i%4 == 3
		if v6 {
			clusterIP = fmt.Sprintf("fd00:40::%x", i+1)
		}
		s := service(nth("svc", i), clusterIP, protocol([]v1.Protocol{"TCP", "UDP", "SCTP"}[i%3]))
		if i%5 == 0 {
			affinity(int32(60 + i))(s)
		}
		if i%3 == 0 {
			s.Spec.Type = v1.ServiceTypeLoadBalancer
			s.Spec.Ports[0].NodePort = int32(30000 + i)
			s.Spec.ExternalTrafficPolicy = []v1.ServiceExternalTrafficPolicy{"Cluster", "Local"}[i%2]
			if !v6 {
				s.Spec.ExternalIPs = []string{vip(21, i)}
				s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: vip(20, i)}}
				if i%2 == 0 {
					s.Spec.LoadBalancerSourceRanges = []string{"192.168.0.0/16", "172.16.0.0/24"}
				}
			}
		}
		if i%7 == 0 {
			internalLocal(s)
		}
		var es []discoveryv1.Endpoint
		for e := range []int{0, 1, 2, 3, 10, 100}[rng.IntN(6)] {
			p := append(append([]*testbed.Pod{}, c.pods...), c.remotes...)[e%5]
			ip := p.IP4
			if v6 {
				ip = p.IP6
			}
			if e >= 5 {
				ip = ip.Next()
				for range 8 * e {
					ip = ip.Next()
				}
			}
			es = append(es, at(ip))
		}
		c.objects[s.Name], c.objects["e"+s.Name] = s, slice(s, 8080, es...)
	}
	c.write()
}

// `plan -o ofctl` installed by ovs-ofctl on one bridge and `nkp run` on another give the same flows and groups; so does
// a plan on a bridge with other tables.
func TestFormsAgree(t *testing.T) {
	for name, flags := range map[string][]string{
		"default layout": nil,
		"shared bridge": {"--table-base", "50", "--next-table", "10", "--cookie-prefix", "0xabcdef", "--group-base", "0x20000000",
			"--meter", "9", "--zone-dnat", "5001", "--zone-snat", "5002", "--service-cidr", "40.0.0.0/16", "--masquerade-all"},
	} {
		t.Run(name, func(t *testing.T) {
			if flags != nil {
				nightly.Only(t, "the gate compares the default layout")
			}
			c := newCluster(t, testbed.Options{}, flags...)
			c.variety(120)
			c.run()
			c.settle()
			must(t, c.AddBridge("br-two"))
			c.install(t, "br-two")
			differ, err := c.Ofctl("diff-flows", c.Bridge, "br-two") // an error if they do
			if out := seedFlow.ReplaceAllString(differ, ""); strings.TrimSpace(out) != "" || err != nil && differ == "" {
				t.Errorf("flows differ (- nkp run, + ovs-ofctl): %v\n%s", err, tail(out, 2000))
			}
			if a, b := c.groups(t, c.Bridge), c.groups(t, "br-two"); a != b {
				t.Errorf("groups differ:\n%s\nand\n%s", tail(a, 1000), tail(b, 1000))
			}
			if n := strings.Count(c.groups(t, c.Bridge), "group_id="); n < 60 {
				t.Errorf("only %d groups: nothing much was compared", n)
			}
		})
	}
}

// install has ovs-ofctl install what nkp would, on another bridge.
func (c *cluster) install(t *testing.T, bridge string) (took time.Duration) {
	t.Helper()
	plan, errOut, status := c.nkp(append([]string{"plan", "-o", "ofctl"}, c.common()...)...)
	if status != 0 {
		t.Fatalf("plan ends with %d: %s", status, errOut)
	}
	file := filepath.Join(c.dir, "plan.txt")
	must(t, os.WriteFile(file, []byte(plan), 0o644))
	for line := range strings.Lines(plan) {
		if m, ok := strings.CutPrefix(line, "# meter "); ok {
			_, _ = c.Ofctl("add-meter", bridge, strings.TrimSpace(m)) // it may be there; without it the flows are refused
		}
	}
	began := time.Now()
	_, err := c.Ofctl("bundle", bridge, file)
	must(t, err)
	return time.Since(began)
}

// seedFlow is the line of the flow that nkp draws at random once it runs: the seed of session affinity's choices.
var seedFlow = regexp.MustCompile(`(?m)^-table=(17|67) priority=100,reg3=0 .*set_field:0x[0-9a-f]+->reg3\n`)

func (c *cluster) groups(t *testing.T, bridge string) string {
	t.Helper()
	out, err := c.Ofctl("dump-groups", bridge)
	must(t, err)
	lines := slices.DeleteFunc(strings.Split(out, "\n"), func(l string) bool { return l == "" || strings.HasPrefix(l, "OFPST_") }) // each part of the answer has a head
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Every sample plans, in every form, offline. -o iptables prints what --mode iptables does; -o hcn has a load
// balancer of each frontend.
func TestSamplesPlan(t *testing.T) {
	c := offline(t)
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("samples: %v, %v", files, err)
	}
	for _, f := range files {
		for _, form := range []string{"text", "ofctl", "json", "iptables", "hcn"} {
			out := c.local("plan", "--manifests", f, "-o", form, "--source-vip", "100.244.206.66")
			if len(out) < 500 {
				t.Errorf("%s as %s: %q", f, form, out)
			}
			var plan struct {
				LoadBalancers []struct{ FrontendVIPs []string }
			}
			if form == "json" || form == "hcn" {
				must(t, json.Unmarshal([]byte(out), &plan))
			}
			if form == "iptables" && out != c.local("plan", "--manifests", f, "--mode", "iptables") {
				t.Errorf("%s: --mode iptables prints something else than -o iptables", f)
			}
			if form == "hcn" && strings.HasSuffix(f, "whoami-windows.yaml") && !strings.Contains(fmt.Sprint(plan), "[10.99.234.145]") {
				t.Errorf("the load balancer of 10.99.234.145 is not there: %v\n%s", plan, out)
			}
		}
	}
}
