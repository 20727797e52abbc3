package metrics

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/wait"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func request(t *testing.T, method, url, body string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	must(t, err)
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	must(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, string(data)
}

// Every path answers what it is for. What kube-proxy answers, byte by byte, is compared in test/k8s/differential.
func TestPaths(t *testing.T) {
	m, _ := newTest(IPTables)
	var level uint32
	o := ServerOptions{ProxyMode: "iptables", Profiling: true, SetVerbosity: func(l uint32) { level = l },
		Config: func() map[string]any { return map[string]any{"kubeproxy.config.k8s.io": map[string]int{"a": 1}} }, Log: quiet()}
	server := httptest.NewServer(newHandler(m, &o))
	defer server.Close()
	o2 := o
	o2.Profiling, o2.Config = false, nil
	plain := httptest.NewServer(newHandler(m, &o2))
	defer plain.Close()
	for _, tc := range []struct {
		url, method, path, body string
		status                  int
		want                    string
	}{
		{server.URL, "GET", "/metrics", "", 200, "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 0"},
		{server.URL, "GET", "/metrics", "", 200, "go_goroutines"},
		{server.URL, "GET", "/healthz", "", 200, "ok"},
		{server.URL, "GET", "/metrics/slis", "", 200, `kubernetes_healthcheck{name="ping",type="healthz"} 1`},
		{server.URL, "DELETE", "/metrics/slis", "", 200, "metrics reset"},
		{server.URL, "GET", "/proxyMode", "", 200, "iptables"},
		{server.URL, "GET", "/configz", "", 200, `{"kubeproxy.config.k8s.io":{"a":1}}`},
		{plain.URL, "GET", "/configz", "", 200, `{}`},
		{server.URL, "GET", "/debug/pprof/goroutine?debug=1", "", 200, "goroutine profile"},
		{server.URL, "GET", "/debug/pprof", "", 302, ""},
		{plain.URL, "GET", "/debug/pprof/", "", 404, "404"},
		{plain.URL, "PUT", "/debug/flags/v", "5", 404, "404"},
		{server.URL, "GET", "/debug/flags/v", "", 406, "unsupported http method"},
		{server.URL, "PUT", "/debug/flags/v", "many", 400, "invalid syntax"},
		{server.URL, "PUT", "/debug/flags/v", strings.Repeat("1", 1000), 400, "too large"},
		{server.URL, "PUT", "/debug/flags/v", "5", 200, "successfully set klog.logging.verbosity to 5"},
		{server.URL, "GET", "/healthz/", "", 404, "404"},
		{server.URL, "GET", "/nothing", "", 404, "404"},
	} {
		status, text := request(t, tc.method, tc.url+tc.path, tc.body)
		if status != tc.status || !strings.Contains(text, tc.want) {
			t.Errorf("%s %s: %d %.200q, want %d and %q", tc.method, tc.path, status, text, tc.status, tc.want)
		}
	}
	if level != 5 {
		t.Errorf("the log level is %d, want 5", level)
	}
}

// An address that is taken is said, and is an error if that was asked for.
func TestTakenAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	m, _ := newTest(OVS)
	told := 0
	o := ServerOptions{Addr: l.Addr().String(), HardFail: true, Log: quiet(), OnFailure: func(error) { told++ }}
	if err := NewServer(m, o).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "metrics at "+o.Addr+": ") || told != 1 {
		t.Errorf("%v, told %d times", err, told)
	}
}

// Port 0 takes any that is free; "" takes none.
func TestListen(t *testing.T) {
	m, _ := newTest(OVS)
	if err := NewServer(m, ServerOptions{Log: quiet()}).Run(context.Background()); err != nil {
		t.Error(err)
	}
	s := NewServer(m, ServerOptions{Addr: "127.0.0.1:0", Log: quiet()})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go s.Run(ctx)
	wait.For(t, "it to listen", func() bool { return s.Addr() != "" && !strings.HasSuffix(s.Addr(), ":0") })
}
