//go:build linux

package fallback

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/xtables"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const scaleEndpoints = 10 // of each Service

// scaleLong, if set in the environment, makes TestScale use 10,000 Services, as make peers does.
const scaleLong = "NKP_SCALE_LONG"

// Bounds that catch a wrong shape of transactions, not a slow machine: one transaction over iptables-nft for everything
// takes a time that grows with the square of the Services, hours at 10,000.
const (
	scaleFirstSync = 18 * time.Millisecond // a Service
	scaleChange    = 1.2                   // times a restore of that chain alone
)

func scaleName(i int) k8s.PortName {
	return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: fmt.Sprint("ns-", i%50), Name: fmt.Sprint("service-", i)},
		Port: "http", Protocol: "TCP", Family: k8s.IPv4}
}

// scaleVIP is the ClusterIP of Service i.
func scaleVIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{40, 1 + byte(i>>16), byte(i >> 8), byte(i)})
}

// generate makes n Services; no two have an endpoint in common.
func generate(n int) *k8s.Model {
	m := &k8s.Model{
		Node:     k8s.Node{Name: "node", IPs: []netip.Addr{testbed.NodeIP4}},
		Detector: k8s.Detector{CIDRs: []netip.Prefix{testbed.PodCIDR4}},
		Ports:    map[k8s.PortName]*k8s.ServicePort{},
	}
	for i := range n {
		p := &k8s.ServicePort{Name: scaleName(i), Frontends: []k8s.Frontend{{
			Type: k8s.ClusterIP, Address: scaleVIP(i), Port: 80, Policy: k8s.Cluster, WhenEmpty: k8s.Reject}}}
		for j := range scaleEndpoints {
			k := i*scaleEndpoints + j
			p.ClusterEndpoints = append(p.ClusterEndpoints, k8s.Endpoint{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1 + byte(k>>16), byte(k >> 8), byte(k)}), 80)})
		}
		m.Ports[p.Name] = p
	}
	return m
}

// replace puts another endpoint in the place of one of Service i.
func replace(m *k8s.Model, i int, to netip.AddrPort) k8s.Changes {
	p := *m.Ports[scaleName(i)]
	p.ClusterEndpoints = slices.Clone(p.ClusterEndpoints)
	p.ClusterEndpoints[scaleEndpoints/2] = k8s.Endpoint{Addr: to}
	m.Ports[p.Name] = &p
	return k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{p.Name: &p}}
}

// TestScale measures, at 2,000 Services with 10 endpoints each (see scaleLong), the first sync, one endpoint's change against a bare
// restore of the one chain that it touches, and a restart.
func TestScale(t *testing.T) {
	testbed.Linux.Require(t)
	services := 2_000
	if os.Getenv(scaleLong) != "" {
		services = 10_000
	}
	firstSync := time.Duration(services) * scaleFirstSync
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			b, _ := bed(t, testbed.Options{})
			o := defaults(backend)
			o.SyncPeriod = time.Hour
			p := launch(t, b, o)
			begin := time.Now()
			p.ask(request{Op: "generate", N: services})
			first := p.until(begin, func(f FamilyStatus) bool { return f.InStep && f.Services == services }, firstSync)
			t.Logf("first sync: %v", first)

			chain := oneChain(t, b, backend, scaleVIP(services/2))
			file := filepath.Join(t.TempDir(), "bare")
			if err := os.WriteFile(file, []byte(chain), 0o644); err != nil {
				t.Fatal(err)
			}
			restore := map[xtables.Backend]string{xtables.NFT: "iptables-nft-restore", xtables.Legacy: "iptables-legacy-restore"}[backend]
			// Each time, other work on the machine adds some time to both. The least of many is what they take, so a ratio that is too high
			// is measured again, more often.
			var bare, change []time.Duration
			ratio := 0.0
			for i := 0; i < 7 || i < 20 && ratio > scaleChange; i++ {
				start := time.Now()
				if out, err := b.Node.Exec(t.Context(), "env", "XTABLES_LOCKFILE="+lockFile(b), restore, "--noflush", "--counters", "-w", "60", file); err != nil {
					t.Fatal(out, err)
				}
				bare = append(bare, time.Since(start))

				n := p.ipv4().Transactions
				start = time.Now()
				p.ask(request{Op: "replace", N: services / 3, To: fmt.Sprintf("10.250.0.%d:80", i)})
				change = append(change, p.until(start, func(f FamilyStatus) bool { return f.Transactions > n }, time.Minute))
				time.Sleep(2 * change[i]) // the pause that a change is followed by
				ratio = slices.Min(change).Seconds() / slices.Min(bare).Seconds()
			}
			slices.Sort(bare)
			slices.Sort(change)
			t.Logf("bare restore of one chain: median %v of %v", bare[len(bare)/2], bare)
			t.Logf("one endpoint's change:     median %v of %v; at best %.2f of it", change[len(change)/2], change, ratio)
			if ratio > scaleChange {
				t.Errorf("one endpoint's change takes %.2f of a bare restore, want at most %.2f", ratio, scaleChange)
			}

			p.kill()
			p = launch(t, b, o)
			begin = time.Now()
			p.ask(request{Op: "generate", N: services})
			again := p.until(begin, func(f FamilyStatus) bool { return f.InStep && f.Services == services }, firstSync)
			t.Logf("restart: %v, %d rules written", again, p.ipv4().Rules)
			usage, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("resident: %s", regexp.MustCompile(`VmRSS:\s+(.*)`).FindSubmatch(usage)[1])
		})
	}
}

func (p *process) ipv4() FamilyStatus { return p.status().Families[0] }

// until waits for a state of IPv4 and tells how long after the beginning it came.
func (p *process) until(begin time.Time, ok func(FamilyStatus) bool, d time.Duration) time.Duration {
	p.t.Helper()
	for time.Since(begin) < testbed.Patient(d) {
		if ok(p.ipv4()) {
			return time.Since(begin)
		}
		time.Sleep(time.Millisecond)
	}
	p.t.Fatalf("not in %v: %+v", d, p.status())
	return 0
}

// oneChain returns input for iptables-restore that writes the chain of a ClusterIP's Service as it is.
func oneChain(t *testing.T, b *testbed.Bed, backend xtables.Backend, vip netip.Addr) string {
	t.Helper()
	for l := range strings.Lines(iptables(t, b, backend, "iptables", "-t", "nat", "-S", "KUBE-SERVICES")) {
		if name := regexp.MustCompile(`KUBE-SVC-\w+`).FindString(l); name != "" && strings.Contains(l, " "+vip.String()+"/32 ") {
			text := "*nat\n:" + name + " - [0:0]\n"
			for l := range strings.Lines(iptables(t, b, backend, "iptables", "-t", "nat", "-S", name)) {
				if strings.HasPrefix(l, "-A ") {
					text += l
				}
			}
			return text + "COMMIT\n"
		}
	}
	t.Fatalf("no rule for %s", vip)
	return ""
}
