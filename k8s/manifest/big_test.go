package manifest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nkp-proxy/nkp/k8s"
)

// bigManifest returns a List of services with endpoints each, in block style as kubectl prints it.
func bigManifest(services, endpoints int) string {
	var b strings.Builder
	for i := range services {
		bigItems(&b, i, endpoints)
	}
	return listOf(b.String())
}

func listOf(items string) string {
	return "apiVersion: v1\nkind: List\nitems:\n" + items + "metadata:\n  resourceVersion: \"\"\n"
}

// bigItems writes a Service and its EndpointSlice as items of a List.
func bigItems(b *strings.Builder, i, endpoints int) {
	vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	fmt.Fprintf(b, `- apiVersion: v1
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
		fmt.Fprintf(b, `  - addresses:
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
	fmt.Fprintf(b, `  kind: EndpointSlice
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

// writeHuge writes Services with 5 endpoints each, to one file or, as a directory, to a file for each. It returns the path, and
// the file that has the last Service.
func writeHuge(b testing.TB, form string, services int) (path, last string) {
	path = filepath.Join(b.TempDir(), "big."+form)
	if form == "directory" {
		if err := os.Mkdir(path, 0o755); err != nil {
			b.Fatal(err)
		}
		for i := range services {
			var items strings.Builder
			bigItems(&items, i, 5)
			last = filepath.Join(path, fmt.Sprintf("%d.yaml", i))
			write(b, last, listOf(items.String()))
		}
		return path, last
	}
	text := bigManifest(services, 5)
	if form == "json" {
		data, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			b.Fatal(err)
		}
		text = string(data)
	}
	write(b, path, text)
	return path, path
}

// counter is a Sink that counts changes.
type counter struct{ changes int }

func (c *counter) Apply(list []k8s.Change) { c.changes += len(list) }
func (c *counter) Synced()                 {}
func (c *counter) Problems(k8s.Problems)   {}
