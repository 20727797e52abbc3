//go:build linux

package windows

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/plan"

	"github.com/nkp-proxy/nkp/test/k8s/windows/winebed"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// kubeProxy builds kube-proxy.exe, unmodified, once.
var kubeProxy = sync.OnceValues(func() (string, error) {
	exe := filepath.Join(prefix.Dir(), "kube-proxy.exe")
	return exe, winebed.BuildWindows("k8s.io/kubernetes/cmd/kube-proxy", exe, "-ldflags", "-s -w "+testbed.ReportsKube(testbed.KubeVersion))
})

// A difference is a place where nkp and kube-proxy 1.37.2 do not agree, and why nkp is right.
type difference struct {
	object string // a frontend or "endpoint <address>"
	on     func(c *comparison) bool
	reason string
}

// comparison is one setting of a host.
type comparison struct {
	name        string
	networkType string
	dsr, health bool
	dual        bool
	version     hns.Version
}

func always(*comparison) bool       { return true }
func onOverlay(c *comparison) bool  { return c.networkType == hns.NetworkOverlay }
func withHealth(c *comparison) bool { return c.health }
func dualHealth(c *comparison) bool { return c.health && c.dual }
func healthOnOverlay(c *comparison) bool {
	return c.health && onOverlay(c)
}
func onOldest(c *comparison) bool { return !hns.FeaturesOf(c.version).DSR }

// differences are all there are. HEALTHZ stands for the port of --healthz-bind-address.
var differences = []difference{
	{"10.99.0.13:80/TCP", always, "terminating endpoints serve while there are no others; kube-proxy does that for Services with a load balancer only"},
	{"endpoint 100.244.1.13", always, "as before"},
	{"10.99.0.14:80/TCP", always, "topology hints are observed; kube-proxy ignores them on Windows"},
	{"endpoint 100.244.2.14", always, "as before"},
	{"10.99.0.15:80/TCP", always, "endpoints that listen on another port than the load balancer's get no traffic; kube-proxy sends it to the wrong port"},
	{"endpoint 100.244.1.17", always, "as before"},
	{"10.99.0.16:80/TCP", always, "endpoints that do not serve get no traffic; kube-proxy sends it to them if the Service has a load balancer"},
	{"198.51.100.16:80/TCP", always, "as before"},
	{"endpoint 100.244.1.18", always, "as before"},
	{"endpoint 10.99.0.16", onOverlay, "no load balancer, no VIP endpoint"},
	{"endpoint 10.99.0.12", onOverlay, "no endpoints, no load balancer, no VIP endpoint"},
	{"*:30017/TCP/IPv4", onOverlay, "the source VIP follows the load balancer's own endpoints, which are this node's; kube-proxy looks at all of the Service's"},
	{"*:30005/TCP/IPv4", onOldest, "externalTrafficPolicy Local is observed without DSR, too; kube-proxy then uses all endpoints"},
	{"203.0.113.5:80/TCP", onOldest, "as before"},
	{"*:30008/TCP/IPv4", onOldest, "as before"},
	{"198.51.100.8:80/TCP", onOldest, "as before"},
	{"*:30017/TCP/IPv4", onOldest, "as before"},
	{"10.99.0.3:80/TCP", onOldest, "session affinity is not asked of an HNS that has none"},
	{"endpoint 100.244.1.6", always, "internalTrafficPolicy Local: no load balancer sends to endpoints elsewhere, so they have none in HNS"},
	{"*:30018/TCP/IPv4", always, "the API's nodeName says which endpoints are this node's, as on Linux; kube-proxy asks HNS"},
	{"*:30019/TCP/IPv4", always, "endpoints that terminate serve all frontends while there are no others; kube-proxy leaves NodePorts and external addresses out"},
	{"198.51.100.19:HEALTHZ/TCP", withHealth, "health checks are forwarded as long as the address is served; kube-proxy stops when all endpoints terminate"},
	{"10.99.0.21:80/TCP", onOverlay, "this node's own address is not outside the cluster; kube-proxy takes it for that in a slice without node names"},
	{"198.51.100.20:HEALTHZ/TCP", healthOnOverlay, "the source VIP follows the load balancer's own endpoint, which is this node's; kube-proxy looks at those of the Service"},
	{"[2001:db8:51::31]:HEALTHZ/TCP", dualHealth, "health checks of IPv6 addresses are not forwarded: the endpoint of the host has IPv4 only"},
	{"198.51.100.9:HEALTHZ/UDP", withHealth, "health checks are HTTP: never over UDP"},
	{"198.51.100.9:HEALTHZ/TCP", withHealth, "as before"},
}

// nkp and kube-proxy, the same objects, the same HNS: the same load balancers and remote endpoints, but for the differences listed.
func TestSameAsKubeProxy(t *testing.T) {
	exe, err := kubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []comparison{
		{name: "l2bridge", networkType: hns.NetworkL2Bridge, version: newest, dual: true},
		{name: "l2bridge-dsr-health", networkType: hns.NetworkL2Bridge, version: newest, dsr: true, health: true, dual: true},
		{name: "overlay", networkType: hns.NetworkOverlay, version: newest},
		{name: "overlay-dsr-health-old", networkType: hns.NetworkOverlay, version: hns.Version{Major: 13, Minor: 2}, dsr: true, health: true},
		{name: "l2bridge-oldest", networkType: hns.NetworkL2Bridge, version: hns.Version{Major: 9, Minor: 2}},
	} {
		t.Run(c.name, func(t *testing.T) { compare(t, &c, exe) })
	}
}

func compare(t *testing.T, c *comparison, exe string) {
	ip := someAddress(t)
	healthPort, healthz := freePort(t), freePort(t)
	text := expand(t, "shapes.yaml", ip, healthPort)
	if c.dual {
		text += "---\n" + expand(t, "dual.yaml", ip, healthPort)
	}
	make := func() *host {
		h := newHost(t, c.networkType, c.version)
		h.write("node", text)
		for i := 68; i <= 72; i++ {
			addrs := []string{fmt.Sprintf("100.244.206.%d", i)}
			if c.dual {
				addrs = append(addrs, fmt.Sprintf("fd00:244::%d", i))
			}
			h.HNS.AddPod(h.network, "", "pod-"+addrs[0], "0E-2A-64-f4-ce-44", addrs...)
		}
		h.HNS.AddPod(h.network, "", "cbr0", "00-15-5d-00-00-02", "100.244.206.65")
		h.flags = []string{"--healthz-bind-address", "127.0.0.1:" + healthz}
		if c.dsr {
			h.flags = append(h.flags, "--enable-dsr")
		}
		if c.health {
			h.flags = append(h.flags, "--forward-healthcheck-vip", "--root-hnsendpoint-name", "cbr0")
		}
		return h
	}
	ours := make()
	ours.mac = "" // found out, as kube-proxy does
	ours.start()
	ours.settled()
	ours.agent.Kill()

	theirs := make()
	theirs.startKubeProxy(exe, healthz, fmt.Sprintf("--enable-dsr=%t", c.dsr), fmt.Sprintf("--forward-healthcheck-vip=%t", c.health),
		"--root-hnsendpoint-name", "cbr0", "--source-vip", sourceVIP) // on an L2Bridge kube-proxy ignores it
	theirs.until("kube-proxy has programmed HNS", func() bool { return len(theirs.HNS.LoadBalancers()) > 15 })
	// kube-proxy does not say when it is done.
	err := wait.Until(t.Context(), func() error { return differ(c, healthz, ours, theirs) })
	theirs.agent.Kill()
	if err != nil {
		t.Errorf("%v\nkube-proxy printed\n%s", err, theirs.agent.Out.String())
	}
}

// differ returns what nkp and kube-proxy do not agree on, but for the differences, and the differences that are none.
func differ(c *comparison, healthz string, ours, theirs *host) error {
	got, err1 := facts(ours)
	want, err2 := facts(theirs)
	errs := []error{err1, err2}
	allowed := map[string]bool{}
	for _, d := range differences {
		if d.on(c) {
			allowed[strings.ReplaceAll(d.object, "HEALTHZ", healthz)] = true
		}
	}

	all := maps.Clone(got)
	maps.Copy(all, want)
	for _, object := range slices.Sorted(maps.Keys(all)) {
		differs := got[object] != want[object]
		if differs && !allowed[object] {
			errs = append(errs, fmt.Errorf("%s\n       nkp %s\nkube-proxy %s", object, got[object], want[object]))
		}
		if !differs && allowed[object] {
			errs = append(errs, fmt.Errorf("%s is listed as different and is not: %s", object, got[object]))
		}
		delete(allowed, object)
	}
	for object := range allowed {
		errs = append(errs, fmt.Errorf("%s is listed as different and is nowhere", object))
	}
	return errors.Join(errs...)
}

// startKubeProxy starts kube-proxy.exe with the objects of the manifests.
func (h *host) startKubeProxy(exe, healthz string, flags ...string) {
	h.t.Helper()
	api := newAPIServer(h.t, h.Path("manifests"))
	h.agent = h.Start(exe, append([]string{"--kubeconfig", winebed.Windows(kubeconfig(h.t, api.URL)), "--hostname-override", nodeName,
		"--proxy-mode", "kernelspace", "--network-name", "Calico", "--healthz-bind-address", "127.0.0.1:" + healthz,
		"--metrics-bind-address", "127.0.0.1:" + freePort(h.t), "--kube-api-content-type", "application/json"}, flags...)...)
}

// The calls that kube-proxy takes for the node of TestCallBudgets.
func TestKubeProxyCalls(t *testing.T) {
	exe, err := kubeProxy()
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, hns.NetworkOverlay, newest)
	ip := someAddress(t)
	h.write("node", strings.Join(append(many(200, 5), "apiVersion: v1\nkind: Node\nmetadata: {name: "+nodeName+"}\nstatus: {addresses: [{type: InternalIP, address: "+ip+"}]}\n"), "---\n"))
	h.startKubeProxy(exe, freePort(t), "--source-vip", sourceVIP)
	h.has(200)
	n := 0
	h.until("7000 calls, of which the README says that they are more", func() bool {
		n += len(h.HNS.Calls())
		return n >= 7000
	})
}

// facts returns the load balancers of a host by frontend, and its remote endpoints; endpoints are written by address.
func facts(h *host) (map[string]string, error) {
	f := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(h.HNS.Dump()), "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		if kind == "endpoint" {
			addr, body, _ := strings.Cut(rest, " ")
			f["endpoint "+addr] = body
			continue
		}
		var l hns.LoadBalancer
		if err := json.Unmarshal([]byte(rest), &l); err != nil {
			return f, err
		}
		for _, front := range plan.FrontendsOf(&l) {
			if f[front.String()] != "" {
				return f, fmt.Errorf("two load balancers hold %s", front)
			}
			f[front.String()] = rest
		}
	}
	return f, nil
}

// expand reads a manifest of testdata and puts in what differs from run to run.
func expand(t *testing.T, name, ip, healthPort string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("NODEIP", ip, "HEALTHPORT", healthPort, "NODE", nodeName).Replace(string(text))
}

// someAddress returns an IPv4 address of this machine that has a MAC address: kube-proxy looks for the node's.
func someAddress(t *testing.T) string {
	t.Helper()
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil || len(i.HardwareAddr) == 0 {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				ip, _ := netip.AddrFromSlice(n.IP.To4())
				return ip.String()
			}
		}
	}
	t.Fatal("no interface of this machine has an IPv4 address and a MAC address")
	return ""
}

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"" + url + "\"}}]\nusers: [{name: u, user: {}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
