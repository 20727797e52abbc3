package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

const kubeletPort = 10250

// kubelet is the part of a node's kubelet that serves kubectl exec. A container of it is a process on this machine.
type kubelet struct {
	socket  string // of the agent; "": connections are accepted, and nothing answers
	running atomic.Int32
	execs   atomic.Int32
}

// startKubelet starts a kubelet on a host, and creates the pod of nkp's that runs there.
func (c *cluster) startKubelet(node string, h *testbed.Host, socket string) *kubelet {
	c.t.Helper()
	k := &kubelet{socket: socket}
	l, err := h.Listen(fmt.Sprintf("%s:%d", h.IP4, kubeletPort))
	must(c.t, err)
	if socket == "" {
		c.t.Cleanup(func() { l.Close() })
	} else {
		srv := httptest.NewUnstartedServer(k)
		srv.Listener.Close()
		srv.Listener = l
		srv.StartTLS()
		c.t.Cleanup(srv.CloseClientConnections)
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "nkp-" + node, Namespace: "kube-system", Labels: map[string]string{"app.kubernetes.io/name": "nkp"}},
		Spec: v1.PodSpec{NodeName: node, HostNetwork: true, Containers: []v1.Container{
			{Name: "nkp", Image: "none", Args: []string{"run", "--hostname-override=" + node, "--socket=" + socket}}}},
	}
	created, err := c.client.CoreV1().Pods("kube-system").Create(c.ctx, pod, metav1.CreateOptions{})
	must(c.t, err)
	created.Status = v1.PodStatus{Phase: v1.PodRunning}
	_, err = c.client.CoreV1().Pods("kube-system").UpdateStatus(c.ctx, created, metav1.UpdateOptions{})
	must(c.t, err)
	return k
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/exec/kube-system/nkp-") {
		http.Error(w, "only nkp's pods are here", http.StatusNotFound)
		return
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, k, "", "", "nkp", r.URL.Query()["command"], options, time.Minute, 10*time.Second, remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, errOut io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if command[0] != "/proc/1/exe" {
		return fmt.Errorf("%s is not the program of nkp's container", command[0])
	}
	k.execs.Add(1)
	k.running.Add(1)
	defer k.running.Add(-1)
	cmd := exec.CommandContext(ctx, nkpBinary, command[1:]...)
	cmd.Stdout, cmd.Stderr = out, errOut
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { // ends with the stream
		_, _ = io.Copy(stdin, in)
		stdin.Close()
	}()
	return cmd.Wait()
}

// plugin runs kubectl's plugin on the first node, as its administrator.
func (c *cluster) plugin(args ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, wait.Limit)
	defer cancel()
	return harness.Run(ctx, c.t, c.Node, c.pluginCommand(args...)...)
}

func (c *cluster) pluginCommand(args ...string) []string {
	path := filepath.Join(c.dir, "kubectl-nkp")
	if err := os.Symlink(nkpBinary, path); err != nil && !os.IsExist(err) {
		c.t.Fatal(err)
	}
	return slices.Concat([]string{path}, args, []string{"--kubeconfig", c.adminConfig()})
}

// kubectl nkp asks the agents through API server and kubelet. A node that does not answer is named, and holds up nothing.
func TestKubectl(t *testing.T) {
	t.Parallel()
	c, client, web, _ := newStory(t)
	c.createPod(client, "client")
	k := c.startKubelet(nodeName, c.Node, c.socket())

	out, errOut, status := c.plugin("status")
	must(t, has(out, nodeName, " ovs ", " yes ", "1 node without a pod of nkp's: "+otherNode))
	if status != 0 || errOut != "" {
		t.Errorf("status: %d, %s", status, errOut)
	}
	out, _, _ = c.plugin("status", "--node", nodeName)
	must(t, has(out, "in step", "the switch holds what it should"))

	c.startKubelet(otherNode, c.Remote, "")
	out, errOut, status = c.plugin("status", "-o", "json")
	var answered struct {
		Nodes []struct {
			Node, Error string
			Answer      *struct{ ServicePorts int }
		}
	}
	must(t, json.Unmarshal([]byte(out), &answered))
	if n := answered.Nodes; status != 1 || len(n) != 2 || n[0].Answer == nil || n[0].Answer.ServicePorts == 0 || n[1].Answer != nil || n[1].Error == "" ||
		!strings.Contains(errOut, "1 of 2 nodes did not answer") {
		t.Errorf("status ends with %d: %s%s", status, out, errOut)
	}

	out, errOut, status = c.plugin("services", "web", "--node", nodeName, "-o", "wide")
	if err := has(out, "default/web:http/TCP", "IPv4", "IPv6", "3/3", "endpoint "+web[0].IP4.String()); err != nil || status != 0 {
		t.Errorf("services: %d, %v, %s", status, err, errOut)
	}
	if out, errOut, status = c.plugin("services", "web", "--request-timeout", "3s"); status != 1 || has(out, "default/web:http/TCP") != nil || has(errOut, otherNode) != nil {
		t.Errorf("services of all nodes: %d, %s%s", status, out, errOut)
	}
	if _, errOut, status = c.plugin("services", "wbe", "--node", nodeName); status != 1 || has(errOut, "no node serves a Service default/wbe") != nil {
		t.Errorf("services wbe: %d, %s", status, errOut)
	}

	trace := []string{"trace", "--from", "pod/" + client.Name, "--to", "svc/web:http", "--live"}
	out, errOut, status = c.plugin(trace...)
	if err := has(out, "asked on node "+nodeName, client.IP4.String(), "40.0.0.10:80", web[0].IP4.String()); err != nil || status != 0 {
		t.Errorf("trace: %d, %v, %s%s", status, err, out, errOut)
	}
	if _, errOut, status = c.plugin("trace", "--from", "203.0.113.9", "--to", webOnNode); status != 2 || has(errOut, "--node") != nil {
		t.Errorf("trace from outside: %d, %s", status, errOut)
	}
	if _, errOut, status = c.plugin("trace", "--from", "pod/none", "--to", "svc/web"); status != 1 || has(errOut, `"none" not found`) != nil {
		t.Errorf("trace from a pod that does not exist: %d, %s", status, errOut)
	}

	c.withoutWebSockets(k)
	c.pageOfNodes()

	if out, errOut, status = c.plugin("diff", "--node", nodeName); status != 0 || out+errOut != "" {
		t.Errorf("diff: %d, %s%s", status, out, errOut)
	}
	_, err := c.Ofctl("add-flow", c.Bridge, "table=1,priority=60000,ip,nw_dst=40.0.0.10,actions=drop")
	must(t, err)
	if out, _, status = c.plugin("diff", "--node", nodeName); status != 1 || has(out, nodeName+": !") != nil {
		t.Errorf("diff beside a foreign flow: %d, %s", status, out)
	}
	if out, _, status = c.plugin("diff", "-o", "json"); status != 2 || has(out, `"equal": false`, `"error": `) != nil {
		t.Errorf("diff of all nodes: %d, %s", status, out)
	}
	c.eventually("no command is left in the pod", func() error {
		if n := k.running.Load(); n > 0 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
}

// withoutWebSockets asks through a proxy that refuses WebSockets.
func (c *cluster) withoutWebSockets(k *kubelet) {
	c.t.Helper()
	target, err := url.Parse("https://" + serverAddr)
	must(c.t, err)
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.Transport = &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: c.Node.DialContext,
	}
	refused := atomic.Int32{}
	l, err := c.Node.Listen("127.0.0.1:0")
	must(c.t, err)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			refused.Add(1)
			http.Error(w, "no WebSockets here", http.StatusForbidden)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	srv.Listener.Close()
	srv.Listener = l
	srv.StartTLS() // kubeconfig's credentials go nowhere else
	defer srv.CloseClientConnections()
	before := k.execs.Load()
	out, errOut, status := c.plugin("status", "--node", nodeName, "--server", "https://"+l.Addr().String(), "--insecure-skip-tls-verify")
	if status != 0 || has(out, "in step") != nil || refused.Load() == 0 || k.execs.Load() == before {
		c.t.Errorf("without WebSockets (%d refused): %d, %s%s", refused.Load(), status, out, errOut)
	}
}

// pageOfNodes reads the page of all nodes, and what the page of one shows.
func (c *cluster) pageOfNodes() {
	c.t.Helper()
	page := harness.Start(c.t, c.Node, c.pluginCommand("ui")...)
	defer page.Kill()
	var address string
	c.eventually("the page has an address", func() error {
		line, _, found := strings.Cut(page.Log.String(), "\n")
		if address = line; !found || !strings.HasPrefix(line, "http://") {
			return fmt.Errorf("%q", page.Log.String())
		}
		return nil
	})
	client := &http.Client{Transport: &http.Transport{DialContext: c.Node.DialContext}}
	get := func(path string) (string, error) {
		r, err := client.Get(address + path)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		var b bytes.Buffer
		_, err = b.ReadFrom(r.Body)
		return fmt.Sprint(r.StatusCode, " ", b.String()), err
	}
	for path, want := range map[string]string{
		"": `200 <!doctype html>`, "style.css": "200 ", nodeName + "/": "<title>nkp</title>",
		nodeName + "/api/status": `"node":"` + nodeName + `"`, nodeName + "/api/services?name=web": `"name":"web"`,
		otherNode + "/api/status": "502 nkp on node " + otherNode,
	} {
		if text, err := get(path); err != nil || !strings.Contains(text, want) {
			c.t.Errorf("page at %q: %v, %.300s; want %s", path, err, text, want)
		}
	}
	if text, _ := get(""); !strings.Contains(text, `<a href="`+nodeName+`/">`) {
		c.t.Errorf("the list has no link to %s: %s", nodeName, text)
	}
}
