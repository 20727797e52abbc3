package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/k8s/manifest"
	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/wait"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// manifests are a Service with one endpoint on an overlay node.
const manifests = `
{apiVersion: v1, kind: Node, metadata: {name: winw1}, status: {addresses: [{type: InternalIP, address: 10.20.30.11}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},
 spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ports: [{name: http, port: 80, protocol: TCP, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}},
 addressType: IPv4, ports: [{name: http, port: 8080, protocol: TCP}],
 endpoints: [{addresses: [100.244.1.7], nodeName: other, conditions: {ready: true}}]}
`

// An agent in mode windows serves every metric that is defined for it. (For the other modes see test/packets.)
func TestMetricsOfWindows(t *testing.T) {
	fake := hnsfake.New(hns.Version{Major: 15, Minor: 5})
	network := fake.AddNetwork("Calico", hns.NetworkOverlay, map[string]string{"100.244.1.0/24": "10.20.30.12"})
	fake.AddPod(network, "", "Calico_ep", "00-15-5d-00-00-01", "100.244.206.66")
	fake.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: 1, Code: hns.CodePortExists, Text: "taken"})
	dir := t.TempDir()
	file := filepath.Join(dir, "m.yaml")
	must(t, os.WriteFile(file, []byte(manifests), 0o644))
	log := slog.New(slog.DiscardHandler)
	set := Settings{Options: k8s.Options{NodeName: "winw1"}, Fallback: fallback.DefaultOptions(), Metrics: MetricsSettings{Addr: "127.0.0.1:0"}}
	set.Windows.NetworkName, set.Windows.StateFile, set.Windows.HostMAC = "Calico", filepath.Join(dir, "hns.json"), "08:00:27:09:de:92"
	set.Windows.Open = func() (hns.Host, error) { return fake.Host(), nil }
	a, err := New(Options{
		Settings: set, Mode: mode.Windows, Source: manifest.NewSource(file), Kind: "manifests", Events: apiserver.NewLogRecorder("winw1", log), Log: log,
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	want := []string{
		`nkp_hns_objects{object="load_balancer"} 1`, `nkp_hns_calls_total{call="create_load_balancer",result="ok"} 1`,
		`nkp_in_step{ip_family="IPv4"} 1`, `nkp_mode_info{mode="windows"} 1`, `nkp_hns_changes_total{operation="created"} 3`,
		`kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total{error="port_already_exists",ip_family="IPv4",lb_type="clusterip"} 1`,
	}
	text := ""
	wait.NoError(t, "metrics", func() error {
		at := a.metricsServer.Addr()
		if at == "" {
			return errors.New("nothing listens")
		}
		if text, err = get("http://" + at + "/metrics"); err != nil {
			return err
		}
		for _, line := range want {
			if !strings.Contains(text, "\n"+line+"\n") {
				return fmt.Errorf("missing %q in\n%s", line, text)
			}
		}
		return nil
	})
	for _, d := range metrics.Definitions() {
		if d.ServedIn(metrics.Windows) && d.Only == "" && !strings.Contains(text, "\n# TYPE "+d.Name+" ") {
			t.Errorf("%s is not served", d.Name)
		}
	}
	if mode, err := get("http://" + a.metricsServer.Addr() + "/proxyMode"); mode != "kernelspace" {
		t.Errorf("/proxyMode: %q %v", mode, err)
	}
}

func get(url string) (string, error) {
	res, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
