//go:build linux

package packets

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// At [::1] nkp's own listeners serve NodePorts, on every data plane of Linux: whole streams both ways, with the port of another process
// left to it, and said. They end with the Service and with nkp, and so do their connections; a restart serves again.
func TestLocalhostNodePorts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bed   testbed.Options
		flags []string
	}{
		{"nftables", testbed.Options{Plane: testbed.Linux}, []string{"--mode", "nftables"}},
		{"iptables", testbed.Options{Plane: testbed.Linux}, []string{"--mode", "iptables"}},
		{"ovs", testbed.Options{}, nil},
		{"ovs, with the node beside it", testbed.Options{NodeOutside: true}, []string{"--service-cidr", serviceCIDRs}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name != "nftables" && tc.name != "ovs" {
				nightly.Only(t, "the other data planes are in the gate")
			}
			c := newCluster(t, tc.bed, append(tc.flags, "--nodeport-addresses", "primary,localhost")...)
			testLocalhostNodePorts(t, c)
		})
	}
}

func testLocalhostNodePorts(t *testing.T, c *cluster) {
	end := c.remotes[0]
	web := service("web", "fd00:40::1", exposed(30080))
	busy := service("busy", "fd00:40::2", exposed(30081))
	stream := service("stream", "fd00:40::3", exposed(30082))
	empty := service("empty", "fd00:40::4", exposed(30083))
	udp := service("udp", "fd00:40::5", exposed(30084), protocol(v1.ProtocolUDP))
	process, err := c.Node.Listen("[::]:30081")
	must(t, err)
	defer process.Close()
	sent, answer, far := streamEnd(t, end, 9000)
	objects := []any{
		web, slice(web, 8080, at(end.IP6)), busy, slice(busy, 8080, at(end.IP6)), stream, slice(stream, 9000, at(end.IP6)),
		empty, udp, slice(udp, 8080, at(end.IP6)),
	}
	c.servePods(t)
	c.put(objects...)
	c.run()
	c.statusSays("listens for 2 TCP NodePorts at [::1], 1 not served there", "NodePort 30081 is not served at [::1]: bind: address already in use")

	if a := c.ask(t, c.Node, "tcp", "[::1]:30080", end.Name); a.Client.Addr() != c.Node.IP6 {
		t.Errorf("the endpoint saw %v, want the node", a.Client)
	}
	for _, to := range []string{"[::1]:30083", "[::1]:30084"} {
		proto := map[bool]string{true: "udp", false: "tcp"}[strings.HasSuffix(to, "4")]
		if _, err := c.Node.Ask(c.ctx, proto, to); !errors.Is(err, testbed.ErrRefused) {
			t.Errorf("%s %s: %v, want it refused", proto, to, err)
		}
	}
	c.streams(t, "[::1]:30082", sent, answer, far)
	c.saysOfLocalhost(t)

	held, err := c.Node.Hold(c.ctx, "[::1]:30080", testbed.DialOptions{})
	must(t, err)
	defer held.Close()
	must(t, c.agent.Stop(syscall.SIGTERM))
	if err := held.Check(); !errors.Is(err, testbed.ErrBroken) {
		t.Errorf("after nkp has ended the connection meets %v, want a reset", err)
	}
	if _, err := c.Node.Ask(c.ctx, "tcp", "[::1]:30080"); !errors.Is(err, testbed.ErrRefused) {
		t.Errorf("after nkp has ended: %v, want it refused", err)
	}

	c.run()
	c.statusSays("listens for 2 TCP NodePorts at [::1], 1 not served there")
	again, err := c.Node.Hold(c.ctx, "[::1]:30080", testbed.DialOptions{})
	must(t, err)
	defer again.Close()
	c.remove(web)
	c.statusSays("listens for 1 TCP NodePort at [::1], 1 not served there")
	if err := again.Check(); !errors.Is(err, testbed.ErrBroken) {
		t.Errorf("after the Service is deleted the connection meets %v, want a reset", err)
	}
	if _, err := c.Node.Ask(c.ctx, "tcp", "[::1]:30080"); !errors.Is(err, testbed.ErrRefused) {
		t.Errorf("after the Service is deleted: %v, want it refused", err)
	}
}

// saysOfLocalhost checks what services, trace and the metrics say.
func (c *cluster) saysOfLocalhost(t *testing.T) {
	t.Helper()
	const taken = "NodePort 30081 is not served at [::1]: bind: address already in use"
	out, errOut, _ := c.nkp("services", "default/busy", "--socket", c.socket())
	if !strings.Contains(out, taken) || !strings.Contains(out, "[::1]:30081") {
		t.Errorf("services says\n%s%s", out, errOut)
	}
	if out, _, _ = c.nkp("services", "default/udp", "--socket", c.socket()); strings.Contains(out, "[::1]") {
		t.Errorf("services claims a UDP port at [::1]:\n%s", out)
	}

	for _, tc := range []struct {
		to, flag string
		status   int
		says     string
	}{
		{"[::1]:30080", "--live", 0, "nkp itself accepts the connection"},
		{"[::1]:30080", "--reply", 0, "nkp copies the answer"},
		{"[::1]:30080", "--probe", 1, "not probed: nkp itself accepts connections there"},
		{"[::1]:30081", "--live", 1, taken},
		{"[::1]:30083", "--live", 0, "without an endpoint nkp does not listen there"},
		{"[::1]:30084", "--protocol=udp", 0, "is not served at loopback addresses of IPv6, but for TCP"},
	} {
		out, errOut, status := c.nkp("trace", "--from", "::1", "--to", tc.to, tc.flag, "--socket", c.socket())
		if status != tc.status || !strings.Contains(out+errOut, tc.says) {
			t.Errorf("trace --to %s %s ends with %d, want %d and %q:\n%s%s", tc.to, tc.flag, status, tc.status, tc.says, out, errOut)
		}
	}

	s := c.scrapeUntil(map[string]float64{
		`kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv6"}`:                        2,
		`kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv6"}`: 1,
		`nkp_localhost_nodeport_unserved`:                                                          1,
		`nkp_localhost_nodeport_connections`:                                                       0,
		`nkp_localhost_nodeport_connections_total{result="connected"}`:                             2,
		`nkp_localhost_nodeport_connections_total{result="limit_node"}`:                            0,
	})
	if !s.serves("nkp_localhost_nodeport_buffer_bytes") {
		t.Error("no metric of the buffers")
	}
}

// streamEnd serves one connection on a port of a pod: it sends answer when it has read all until the client closed its half. What it
// has read comes by far.
func streamEnd(t *testing.T, end *testbed.Pod, port int) (sent, answer []byte, far <-chan []byte) {
	t.Helper()
	sent, answer = make([]byte, 4<<20), make([]byte, 4<<20)
	_, _ = rand.Read(sent) // never fails
	_, _ = rand.Read(answer)
	l, err := end.Listen(fmt.Sprint("[::]:", port))
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	read := make(chan []byte, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		all, _ := io.ReadAll(conn)
		read <- all
		_, _ = conn.Write(answer)
	}()
	return sent, answer, read
}

func (c *cluster) streams(t *testing.T, to string, sent, answer []byte, far <-chan []byte) {
	t.Helper()
	conn, err := c.Node.DialTCP(c.ctx, to, testbed.DialOptions{})
	must(t, err)
	defer conn.Close()
	_, err = conn.Write(sent)
	must(t, err)
	must(t, conn.(*net.TCPConn).CloseWrite())
	back, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(back, answer) || !bytes.Equal(<-far, sent) {
		t.Errorf("an end did not get what the other has sent: %v, %d bytes of %d came back", err, len(back), len(answer))
	}
}
