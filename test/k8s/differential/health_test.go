package differential

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"github.com/nkp-proxy/nkp/internal/observe/health"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/wait"
)

// The health check node ports answer every request as kube-proxy's own server does.
func TestHealthCheckNodePorts(t *testing.T) {
	const loopback = "127.0.0.0/8"
	name := k8s.ServiceName{Namespace: "default", Name: `we"b`}
	theirPort, ourPort := freePort(t), freePort(t)

	addresses := proxyutil.NewNodePortAddresses(v1.IPv4Protocol, []string{loopback})
	theirs := healthcheck.NewServiceHealthServer("n", nil, addresses, healthcheck.NewProxyHealthServer("", time.Minute, aNode{}), v1.IPv4Protocol)
	key := types.NamespacedName{Namespace: name.Namespace, Name: name.Name}
	if err := theirs.SyncServices(map[types.NamespacedName]uint16{key: theirPort}); err != nil {
		t.Fatal(err)
	}
	defer theirs.SyncServices(nil)

	ours := health.NewServices(health.ServicesOptions{
		NodePortAddresses: []netip.Prefix{netip.MustParsePrefix(loopback)}, Healthy: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go ours.Run(ctx)

	node := k8s.Node{Local: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	for _, local := range []int{0, 1, 17} {
		if err := theirs.SyncEndpoints(map[types.NamespacedName]int{key: local}); err != nil {
			t.Fatal(err)
		}
		ours.Update(&k8s.Model{Node: node}, k8s.Changes{HealthChecks: map[k8s.ServiceName]*k8s.HealthCheck{
			name: {Port: ourPort, Local4: local, Local6: -1},
		}})
		for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "WHAT"} {
			for _, path := range []string{"/", "/a//b/../c?x", "*"} {
				want := exchange(t, fmt.Sprint("127.0.0.1:", theirPort), method, path, "")
				if got := exchange(t, fmt.Sprint("127.0.0.1:", ourPort), method, path, ""); got != want {
					t.Errorf("%d local endpoints, %s %s:\nkube-proxy %q\nnkp        %q", local, method, path, want, got)
				}
			}
		}
	}
}

// /healthz and /livez answer as kube-proxy's own server does.
func TestHealthz(t *testing.T) {
	known := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, tc := range []struct {
		name            string
		node            *v1.Node
		updated, queued bool
	}{
		{"at the start", known, false, false},
		{"without a Node", nil, false, false},
		{"programmed", known, true, false},
		{"behind", known, true, true},
		{"behind, without a Node", nil, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			theirAddr := fmt.Sprint("127.0.0.1:", freePort(t))
			theirs := healthcheck.NewProxyHealthServer(theirAddr, time.Millisecond, aNode{tc.node})
			ours := health.NewProxy(health.ProxyOptions{Timeout: time.Millisecond, Log: slog.New(slog.DiscardHandler)})
			ours.SetNode(k8s.Node{Known: tc.node != nil})
			if tc.updated {
				theirs.Updated(v1.IPv4Protocol)
				theirs.Updated(v1.IPv6Protocol)
				ours.Updated(k8s.IPv4, k8s.IPv6)
			}
			if tc.queued {
				theirs.QueuedUpdate(v1.IPv6Protocol)
				ours.Queued(k8s.IPv6)
				time.Sleep(3 * time.Millisecond)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go theirs.Run(ctx)
			server := httptest.NewServer(ours.Handler)
			defer server.Close()
			for _, path := range []string{"/healthz", "/livez", "/", "/healthz/", "/x"} {
				want := exchange(t, theirAddr, "GET", path, "")
				if got := exchange(t, strings.TrimPrefix(server.URL, "http://"), "GET", path, ""); got != want {
					t.Errorf("%s:\nkube-proxy %q\nnkp        %q", path, want, got)
				}
			}
		})
	}
}

// aNode is what kube-proxy's servers ask for the Node object.
type aNode struct{ node *v1.Node }

func (n aNode) Node() *v1.Node { return n.node }

func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

var (
	date         = regexp.MustCompile(`Date: [^\r]*`)
	length       = regexp.MustCompile(`Content-Length: [0-9]*`) // varies with the digits of the time
	timestamp    = regexp.MustCompile(`"20[0-9T:.+Z-]*"`)
	processStart = regexp.MustCompile(`(?m)^(process_start_time_seconds|Process-Start-Time-Unix:) .*$`)
)

// exchange returns the whole answer to a request, without what two answers never share.
func exchange(t *testing.T, addr, method, path, body string) string {
	t.Helper()
	var c net.Conn
	wait.NoError(t, "a server that begins to listen by itself", func() (err error) {
		c, err = net.Dial("tcp", addr)
		return err
	})
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait.Limit))
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		method, path, len(body), body)
	text, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	s := date.ReplaceAllString(string(text), "Date: then")
	s = length.ReplaceAllString(s, "Content-Length: some")
	s = processStart.ReplaceAllString(s, "$1 then")
	return timestamp.ReplaceAllString(s, `"then"`)
}
