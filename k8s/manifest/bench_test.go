package manifest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// bigManifest returns a List of services with endpoints each, in block style as kubectl prints it.
func bigManifest(services, endpoints int) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for i := range services {
		vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		fmt.Fprintf(&b, `- apiVersion: v1
  kind: Service
  metadata:
    creationTimestamp: "2026-01-02T15:04:05Z"
    labels:
      app: web-%[1]d
    name: web-%[1]d
    namespace: default
  spec:
    clusterIP: %[2]s
    clusterIPs:
    - %[2]s
    internalTrafficPolicy: Cluster
    ipFamilies:
    - IPv4
    ipFamilyPolicy: SingleStack
    ports:
    - name: http
      port: 80
      protocol: TCP
      targetPort: 8080
    selector:
      app: web-%[1]d
    sessionAffinity: None
    type: ClusterIP
  status:
    loadBalancer: {}
- addressType: IPv4
  apiVersion: discovery.k8s.io/v1
  endpoints:
`, i, vip)
		for j := range endpoints {
			n := i*endpoints + j
			fmt.Fprintf(&b, `  - addresses:
    - %s
    conditions:
      ready: true
      serving: true
      terminating: false
    nodeName: node-%d
    targetRef:
      kind: Pod
      name: web-%d-7d4b9c6f5-%05d
      namespace: default
      uid: 9f1c2d3e-0000-4000-8000-%012d
    zone: zone-%d
`, netip.AddrFrom4([4]byte{172, byte(16 + n>>16), byte(n >> 8), byte(n)}), n%100, i, n, n, n%3)
		}
		fmt.Fprintf(&b, `  kind: EndpointSlice
  metadata:
    labels:
      endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io
      kubernetes.io/service-name: web-%[1]d
    name: web-%[1]d-x7k2p
    namespace: default
  ports:
  - name: http
    port: 8080
    protocol: TCP
`, i)
	}
	b.WriteString("metadata:\n  resourceVersion: \"\"\n")
	return b.String()
}

func writeBig(tb testing.TB, name string, services int) string {
	tb.Helper()
	text := []byte(bigManifest(services, 10))
	path := filepath.Join(tb.TempDir(), "big.yaml")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		tb.Fatal(err)
	}
	if name == "json" {
		m := Load(path)
		items := make([]any, len(m.Objects))
		for i, c := range m.Objects {
			text, err := json.Marshal(c.Object)
			if err != nil {
				tb.Fatal(err)
			}
			var o map[string]any
			if err := json.Unmarshal(text, &o); err != nil {
				tb.Fatal(err)
			}
			o["kind"], o["apiVersion"] = c.Ref.Kind, apiVersions[c.Ref.Kind]
			items[i] = o
		}
		text, err := json.MarshalIndent(map[string]any{"kind": "List", "apiVersion": "v1", "items": items}, "", "    ")
		if err != nil {
			tb.Fatal(err)
		}
		path = filepath.Join(tb.TempDir(), "big.json")
		if err := os.WriteFile(path, text, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return path
}

// BenchmarkLoad reads 10,000 Services with 10 endpoints each from one file.
func BenchmarkLoad(b *testing.B) {
	for _, format := range []string{"yaml", "json"} {
		b.Run(format, func(b *testing.B) {
			path := writeBig(b, format, 10000)
			info, err := os.Stat(path)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(info.Size())
			for b.Loop() {
				if m := Load(path); len(m.Objects) != 20000 {
					b.Fatalf("%d objects: %v", len(m.Objects), m.Err())
				}
			}
		})
	}
}

// BenchmarkReload reads that file again after one line has changed.
func BenchmarkReload(b *testing.B) {
	path := writeBig(b, "yaml", 10000)
	r := newReader(path)
	r.scan(nil)
	before := r.assemble(nil)
	text, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		text := strings.Replace(string(text), "port: 8080", fmt.Sprintf("port: %d", 1+i%60000), 1)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
		r.scan(func(string) bool { return true })
		after := r.assemble(before.objects)
		if d := difference(before.objects, after.objects); len(d) != 1 {
			b.Fatalf("%d changes", len(d))
		}
	}
}
