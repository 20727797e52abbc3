//go:build linux

package ui

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/chromedp/chromedp"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = testbed.RemoveBuilt()
	os.Exit(code)
}

// hostile is the name of a node that an EndpointSlice may contain, because its nodeName is not checked like that of an object.
const hostile = `<img src=x onerror="document.title='hostile'"><script>document.title='hostile'</script>`

// node is a bed with an agent on it.
type node struct {
	*testbed.Bed
	bin      string
	local    []*testbed.Pod // on this node
	remote   []*testbed.Pod
	manifest string
	agent    *harness.Process
}

func startNode(t *testing.T, plane testbed.Plane, flags ...string) *node {
	t.Helper()
	n := &node{Bed: testbed.Start(t, testbed.Options{Plane: plane}), manifest: filepath.Join(t.TempDir(), "services.json")}
	var err error
	n.bin, err = testbed.NKP()
	harness.Must(t, err)
	n.local, err = n.AddPods(testbed.PodSpec{}, testbed.PodSpec{}, testbed.PodSpec{})
	harness.Must(t, err)
	n.remote, err = n.AddRemotePods(testbed.PodSpec{}, testbed.PodSpec{})
	harness.Must(t, err)
	for _, p := range append(append([]*testbed.Pod{}, n.local...), n.remote...) {
		_, err := p.ServeTCP(8080)
		harness.Must(t, err)
	}
	n.write(t, harness.OtherNode)
	if plane != testbed.Linux {
		flags = append(flags, "--ovsdb", n.DB(), "--bridge", n.Bridge, "--gateway-mac", testbed.GatewayMAC)
	}
	n.agent = harness.Start(t, n.Node, append([]string{n.bin, "run", "--socket", n.socket(), "--manifests", n.manifest,
		"--hostname-override", harness.NodeName, "--cluster-cidr", "10.0.0.0/16", "--service-cidr", "40.0.0.0/16"}, flags...)...)
	harness.Must(t, harness.Await(wait.Limit, n.agent.Program, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // then it asks again
		defer cancel()
		_, err := n.local[2].Ask(ctx, "tcp", "40.0.0.10:80")
		return err
	}))
	return n
}

func (n *node) socket() string { return filepath.Join(n.RunDir, "nkp.sock") }

// write writes the Services, and more objects. Endpoints on another node name it otherNode.
func (n *node) write(t *testing.T, otherNode string, more ...any) {
	t.Helper()
	objects := slices.Concat([]any{harness.Node()},
		service(otherNode, "shop", "web", "40.0.0.10", 30080, n.local[0], n.remote[0], n.remote[1]),
		service(otherNode, "shop", "cart", "40.0.0.11", 0, n.local[1], n.remote[0]),
		service(otherNode, "shop", "catalog", "40.0.0.12", 0, n.remote...),
		service(otherNode, "shop", "search", "40.0.0.13", 0, n.local[0]),
		service(otherNode, "monitoring", "grafana", "40.0.0.14", 30300, n.remote[1]), more)
	harness.Must(t, harness.WriteManifests(n.manifest, objects))
}

// service returns a Service with one port, 80 at vip and 8080 at its endpoints, and its EndpointSlice.
func service(otherNode, namespace, name, vip string, nodePort int32, endpoints ...*testbed.Pod) []any {
	port, portName, protocol, ready := int32(8080), "http", v1.ProtocolTCP, true
	s := &v1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: vip, ClusterIPs: []string{vip}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Name: portName, Port: 80, Protocol: protocol, NodePort: nodePort}}},
	}
	if nodePort != 0 {
		s.Spec.Type = v1.ServiceTypeNodePort
	}
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}
	for _, p := range endpoints {
		where := otherNode
		if p.Local {
			where = harness.NodeName
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.IP4.String()}, NodeName: &where, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%s", name, p.Name)},
		})
	}
	return []any{s, slice}
}

// ask keeps asking some Services until the test ends.
func (n *node) ask(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			for j, vip := range []string{"40.0.0.10:80", "40.0.0.12:80", "40.0.0.13:80", "40.0.0.11:80"} {
				if i%(j+1) == 0 {
					once, end := context.WithTimeout(ctx, 100*time.Millisecond)
					_, _ = n.local[2].Ask(once, "tcp", vip)
					end()
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// page starts nkp ui outside the bed's namespaces, where the browser is, and returns the address that it prints. Ctrl-C ends it.
func (n *node) page(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(n.bin, "ui", "--socket", n.socket())
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	cmd.Stderr = os.Stderr
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		late := time.AfterFunc(wait.Limit, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("nkp ui after Ctrl-C: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/\w{26}/\n$`).MatchString(line) {
		t.Fatalf("nkp ui printed %q (%v)", line, err)
	}
	return strings.TrimSpace(line)
}

// A person finds the Service that does not answer and reads why, then follows a packet to the flow that drops it, with the keyboard
// alone. The page logs no error and asks no other host.
func TestPage(t *testing.T) {
	n := startNode(t, testbed.OVS)
	client := n.local[2]
	n.ask(t)
	_, err := n.local[1].Exec(t.Context(), "ip", "link", "set", "eth0", "down")
	harness.Must(t, err)
	address := n.page(t)
	host, err := url.Parse(address)
	harness.Must(t, err)
	b := startBrowser(t, address)

	// The Service with the problem comes first, and says what it is.
	const why = "nothing reaches the local endpoint 10.0.0.12:8080: the link of its port pod-12 (OpenFlow port 12) is down"
	b.sees(".services thead + tbody", "shop/cart:http", "2 of 2", why)
	b.sees(".summary", "5 Service ports", "1 with problems")
	b.sees("#state", "in step, 1 Service port with problems")
	wait.For(t, "the rates of 4 Services", func() bool {
		return b.evaluate(`[...document.querySelectorAll(".services tbody tr")].filter((r) => r.cells[3] && parseFloat(r.cells[3].textContent) > 0).length`) >= "4"
	})
	b.picture("services", ".services")

	// The filter narrows the list.
	b.tab("#filter")
	b.press("graf")
	b.sees(".services thead + tbody", "monitoring/grafana")
	if rows := b.evaluate(`document.querySelectorAll(".services tbody").length`); rows != "1" {
		t.Errorf("%s rows pass the filter", rows)
	}
	b.press("\b\b\b\b")
	b.sees(".services thead + tbody", "shop/cart")

	// The picture shows which endpoint it is. Polls leave the focus where it is.
	b.tab(`a[href="#/service/shop/cart"]`)
	b.polls()
	b.press("\r")
	b.sees("h1", "shop/cart")
	b.sees(".picture svg", "nothing reaches it", "10.0.0.12:8080", "50 % lost", "gets 50 %", "40.0.0.11:80", "answered")
	b.sees(".problems", why)
	b.sees(".connections", "Client", client.IP4.String()+":", "40.0.0.11:80", "10.0.1.11:8080", " s")
	b.picture("service", ".actions")

	// A flow of another owner drops packets in the last table. The trace names it.
	_, err = n.Ofctl("add-flow", n.Bridge, "cookie=0x77,table=30,priority=65000,ip,nw_dst=10.0.1.0/24,actions=drop")
	harness.Must(t, err)
	b.tab(`nav a[href="#/trace"]`)
	b.press("\r")
	b.tab("#from")
	b.press(client.IP4.String())
	b.tab("#to")
	b.press("40.0.0.12:80\r")
	b.sees(".verdict", "Dropped")
	b.sees(".deciding", "Decided in table 30, next hop", "cookie=0x77,table=30,priority=65000,ip,nw_dst=10.0.1.0/24,actions=drop", "del-flows")
	b.sees(".box.decided", "table 30")
	b.pathsPassUsedBoxes()
	b.sees(".columns", "internalTrafficPolicy Cluster", "What is installed does not agree")
	b.picture("trace", ".picture")

	// A packet that arrives.
	b.tab("#to")
	b.press("40.0.0.13:80\r")
	b.sees(".verdict", "Delivered", "shop/search:http")

	// The button has nkp send it, and the page says who answered.
	b.tab("#probe")
	b.press("\r")
	b.sees(".probe.good", "The packet that was sent", "answered by 10.0.0.11:8080 after", "sent at port pod-13")

	// The node names the flow, too.
	b.tab(`nav a[href="#/node"]`)
	b.press("\r")
	b.sees(".problems", "flows of other owners in nkp's tables: 1", "cookie=0x77")
	b.sees(".cards", "Conntrack table", "OpenFlow", "connected", "Database", "answers")
	b.sees("#state", "2 warnings")
	b.sees(".pods tbody tr.troubled:first-child", "pod-12", "10.0.0.12", "down", "dead: Interface.link_state is down")
	b.picture("node", ".pods")

	// A narrow screen needs no scrolling to the side.
	b.do(chromedp.EmulateViewport(390, 844))
	for _, x := range []struct{ view, sees string }{
		{"#/services", "shop/cart"}, {"#/service/shop/cart", why},
		{"#/trace?from=10.0.0.13&to=40.0.0.12:80&protocol=tcp", "10.0.0.13"}, {"#/node", "Conntrack table"},
	} {
		view := x.view
		b.evaluate(fmt.Sprintf("location.hash = %q", view))
		b.sees("main", x.sees)
		if wide := b.evaluate("document.documentElement.scrollWidth > innerWidth"); wide != "false" {
			t.Errorf("%s is wider than a narrow screen", view)
		}
	}
	b.clean(host.Host)
}

// With nftables the page shows that data plane's state, and explains packets from the model.
func TestNFTables(t *testing.T) {
	n := startNode(t, testbed.Linux, "--mode", "nftables")
	n.write(t, hostile, service(harness.OtherNode, "shop", "many", "40.0.0.15", 0, manyPods(250)...)...)
	b := startBrowser(t, n.page(t)+"#/node")
	b.sees(".cards", "nftables: ", "in step: 6 Service ports", "elements", "synced")
	b.sees("#state", "in step")
	b.evaluate(`location.hash = "#/trace?from=10.0.0.13&to=40.0.0.12:80&protocol=tcp"`)
	b.sees("#result", "Delivered", "candidate: 10.0.1.11:8080 (pod shop/catalog-", ") on "+hostile)

	// A long table is cut, and says where the rest is.
	b.evaluate(`location.hash = "#/service/shop/many"`)
	b.sees(".wide", "50 more: nkp services shop/many -o wide")
	if rows := b.evaluate(`document.querySelectorAll(".wide tbody tr").length`); rows != "200" {
		t.Errorf("%s rows of 250 endpoints", rows)
	}
}

// manyPods returns pods that exist as endpoints only.
func manyPods(n int) (list []*testbed.Pod) {
	for i := range n {
		list = append(list, &testbed.Pod{Host: &testbed.Host{Name: fmt.Sprint(i), IP4: netip.AddrFrom4([4]byte{10, 0, 9, byte(i)})}})
	}
	return list
}

// Text from the cluster stays text. With iptables the page shows what that data plane reports, and traces without the pipeline.
func TestHostileNames(t *testing.T) {
	n := startNode(t, testbed.Linux, "--mode", "iptables")
	n.write(t, hostile)
	address := n.page(t)
	b := startBrowser(t, address+"#/service/shop/catalog")
	b.sees(".wide", hostile)
	if title := b.evaluate("document.title"); title != "nkp · "+harness.NodeName {
		t.Errorf("the title is %q: markup of a node's name took effect", title)
	}
	if images := b.evaluate(`document.querySelectorAll("img, script:not([src])").length`); images != "0" {
		t.Errorf("%s elements came from a node's name", images)
	}
	b.evaluate(`location.hash = "#/trace?from=10.0.0.13&to=40.0.0.12:80&protocol=tcp"`)
	b.sees("#result", "Delivered", "candidate: 10.0.1.11:8080 (pod shop/catalog-", ") on "+hostile, "What is installed agrees", "KUBE-SVC")
	b.evaluate(`location.hash = "#/node"`)
	b.sees(".cards", "iptables: ", "in step: 5 Service ports", "synced")
	b.sees("#state", "in step")
	host, err := url.Parse(address)
	harness.Must(t, err)
	b.clean(host.Host)
}
