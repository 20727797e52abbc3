package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
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

// writeHuge writes Services with 5 endpoints each, to one file or, as a directory, to a file for each. It returns the path, and
// the file that has the last Service.
func writeHuge(b testing.TB, form string, services int) (path, last string) {
	text := bigManifest(services, 5)
	path = filepath.Join(b.TempDir(), "big."+form)
	switch form {
	case "directory":
		if err := os.Mkdir(path, 0o755); err != nil {
			b.Fatal(err)
		}
		for pair := range slices.Chunk(split([]byte(text)), 2) {
			last = filepath.Join(path, fmt.Sprintf("%d.yaml", pair[0].item))
			if err := os.WriteFile(last, slices.Concat([]byte("apiVersion: v1\nkind: List\nitems:\n"), pair[0].raw, pair[1].raw), 0o644); err != nil {
				b.Fatal(err)
			}
		}
		return path, last
	case "json":
		var err error
		if text, err = asJSON(text); err != nil {
			b.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	return path, path
}

// asJSON returns a List in YAML as kubectl prints it in JSON.
func asJSON(text string) (string, error) {
	var items []json.RawMessage
	for _, p := range split([]byte(text)) {
		data, _, err := toJSON(p.raw)
		if err != nil {
			return "", err
		}
		items = append(items, bytes.Trim(data, "[]"))
	}
	list, err := json.MarshalIndent(map[string]any{"kind": "List", "apiVersion": "v1", "items": items}, "", "    ")
	return string(list), err
}

// counter is a Sink that counts changes.
type counter struct{ changes int }

func (c *counter) Apply(list []k8s.Change) { c.changes += len(list) }
func (c *counter) Synced()                 {}
func (c *counter) Problems(k8s.Problems)   {}
