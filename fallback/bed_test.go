//go:build linux

package fallback_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// backends are those that tests run over; each has its own tables.
var backends = []restore.Backend{restore.NFT, restore.Legacy}

// onNFTables stands for nftables where tests have a back end of iptables.
const onNFTables restore.Backend = "nftables"

// each runs a test over every back end of iptables, side by side.
func each(t *testing.T, f func(t *testing.T, b restore.Backend)) {
	t.Helper()
	over(t, backends, f)
}

// eachPlane runs a test over nftables, too.
func eachPlane(t *testing.T, f func(t *testing.T, b restore.Backend)) {
	t.Helper()
	over(t, append([]restore.Backend{onNFTables}, backends...), f)
}

func over(t *testing.T, list []restore.Backend, f func(t *testing.T, b restore.Backend)) {
	t.Helper()
	testbed.Linux.Require(t)
	for _, b := range list {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			f(t, b)
		})
	}
}

// defaults are the options of a node of the bed's: pods told by the cluster's range.
func defaults(b restore.Backend) childOptions {
	return childOptions{
		Config: serving.DefaultConfig(), Backend: b, SyncPeriod: 200 * time.Millisecond,
		Tracker: k8s.Options{
			NodeName:    "node",
			DetectLocal: k8s.DetectLocal{Mode: k8s.DetectByClusterCIDR, CIDRs: []netip.Prefix{testbed.PodCIDR4, testbed.PodCIDR6}},
		},
	}
}

// bed is a bed with two pods on the node and one elsewhere, which serve TCP 80 and UDP 53.
func bed(t *testing.T, o testbed.Options) (b *testbed.Bed, pods []*testbed.Pod) {
	t.Helper()
	o.Plane = testbed.Linux
	b = testbed.Start(t, o)
	pods, err := b.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	remote, err := b.AddRemotePods(testbed.PodSpec{})
	must(t, err)
	pods = append(pods, remote...)
	for _, p := range pods {
		if _, err := p.ServeTCP(80); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ServeUDP(53); err != nil {
			t.Fatal(err)
		}
	}
	return b, pods
}

// service writes a Service in both families with TCP port 80 and UDP port 53. spec is more of its spec, in lines of YAML.
func service(name string, number int, spec ...string) string {
	var more strings.Builder
	for _, l := range spec {
		more.WriteString("  " + l + "\n")
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  clusterIP: 40.0.0.%d
  clusterIPs: [40.0.0.%d, "fd00:40::%d"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
%s  ports:
  - {name: http, port: 80, protocol: TCP, nodePort: %d}
  - {name: dns, port: 53, protocol: UDP, nodePort: %d}
`, name, number, number, number, more.String(), 30000+number, 31000+number)
}

// clusterIPOnly takes the node ports away, which a Service of type ClusterIP must not have.
func clusterIPOnly(manifest string) string {
	lines := strings.SplitAfter(manifest, "\n")
	for i, l := range lines {
		if at := strings.Index(l, ", nodePort:"); at >= 0 {
			lines[i] = l[:at] + "}\n"
		}
	}
	return strings.Join(lines, "")
}

// endpoints writes the EndpointSlices of a Service, one for each family.
func endpoints(name string, pods ...*testbed.Pod) string {
	var b strings.Builder
	for _, family := range []string{"IPv4", "IPv6"} {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s, namespace: default, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [{name: http, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]
endpoints:
`, name, strings.ToLower(family), name, family)
		if len(pods) == 0 {
			b.WriteString("  []\n")
		}
		for _, p := range pods {
			ip, node := p.IP4, "other"
			if family == "IPv6" {
				ip = p.IP6
			}
			if p.Local {
				node = "node"
			}
			fmt.Fprintf(&b, "- {addresses: [\"%s\"], nodeName: %s, conditions: {ready: true}}\n", ip, node)
		}
	}
	return b.String()
}

// run runs a program on a host, which must succeed, and returns what it prints.
func run(t *testing.T, host *testbed.Host, argv ...string) string {
	t.Helper()
	out, err := host.Exec(t.Context(), argv...)
	if err != nil {
		t.Fatalf("%q: %v: %s", argv, err, out)
	}
	return out
}

// nodeObject is the Node that goes with the bed.
const nodeObject = `---
apiVersion: v1
kind: Node
metadata: {name: node}
status:
  addresses:
  - {type: InternalIP, address: 172.16.0.2}
  - {type: InternalIP, address: "fd00:ac::2"}
`

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
