package k8s_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// TestSemantics runs testdata/semantics: each file says in its head which rule it is about, gives settings
// ("#! name=value") and manifests, and after "=== want" the model that must come of them.
func TestSemantics(t *testing.T) {
	files, err := filepath.Glob("testdata/semantics/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, ok := bytes.Cut(text, []byte("=== want\n"))
			if !ok {
				t.Fatal("no line === want")
			}
			path := filepath.Join(t.TempDir(), "in.yaml")
			if err := os.WriteFile(path, input, 0o644); err != nil {
				t.Fatal(err)
			}
			model, _ := plan(t, path, settings(t, string(input)))
			got := strings.ReplaceAll(modelText(model), path, "in.yaml")
			if *update {
				if err := os.WriteFile(file, append(append(input, "=== want\n"...), got...), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s\nfrom:\n%s", got, want, input)
			}
		})
	}
}

// settings reads the "#! name=value" lines of a case; the node is n1 if none says otherwise.
func settings(t *testing.T, input string) k8s.Options {
	t.Helper()
	opts := k8s.Options{NodeName: "n1"}
	for line := range strings.Lines(input) {
		setting, ok := strings.CutPrefix(line, "#! ")
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(setting), "=")
		prefixes := func() (list []netip.Prefix) {
			for p := range strings.SplitSeq(value, ",") {
				list = append(list, netip.MustParsePrefix(p))
			}
			return list
		}
		switch name {
		case "service-proxy-name":
			opts.ServiceProxyName = value
		case "nodeport-addresses":
			opts.NodePortAddresses = prefixes()
		case "service-cidr":
			opts.ServiceCIDRs = prefixes()
		case "families":
			opts.Families = []k8s.Family{k8s.IPv4}
		case "nodeport-primary":
			opts.NodePortPrimary = true
		case "local-addresses":
			for a := range strings.SplitSeq(value, ",") {
				opts.LocalAddresses = append(opts.LocalAddresses, netip.MustParseAddr(a))
			}
		case "detect-local":
			opts.DetectLocal.Mode = k8s.DetectLocalMode(value)
		case "ignore-external-ips":
			opts.IgnoreExternalIPs = true
		case "ignore-load-balancers":
			opts.IgnoreLoadBalancers = true
		case "skip-service":
			name, err := k8s.ParseServiceName(value)
			if err != nil {
				t.Fatal(err)
			}
			opts.SkipServices = append(opts.SkipServices, name)
		default:
			t.Fatalf("unknown setting %s", name)
		}
	}
	return opts
}

// modelText writes a model for people.
func modelText(m *k8s.Model) string {
	var b strings.Builder
	if len(m.Node.IPs) > 0 {
		fmt.Fprintf(&b, "node %s zone=%s ips=%v pods=%v\n", m.Node.Name, m.Node.Zone, m.Node.IPs, m.Node.PodCIDRs)
		if !slices.Equal(m.Node.IPs, m.Node.Local) {
			fmt.Fprintf(&b, "local addresses %v\n", m.Node.Local)
		}
		if m.Node.NotEligible != "" {
			fmt.Fprintf(&b, "not eligible: %s\n", m.Node.NotEligible)
		}
	}
	if len(m.Detector.CIDRs) > 0 {
		fmt.Fprintf(&b, "pods are in %v\n", m.Detector.CIDRs)
	}
	if len(m.ServiceCIDRs) > 0 {
		fmt.Fprintf(&b, "service ranges %v\n", m.ServiceCIDRs)
	}
	if len(m.Skipped) > 0 {
		fmt.Fprintf(&b, "skipped %v\n", m.Skipped)
	}
	for _, name := range slices.SortedFunc(maps.Keys(m.Ports), k8s.PortName.Compare) {
		p := m.Ports[name]
		fmt.Fprintf(&b, "%s %s %s", name, name.Protocol, name.Family)
		if p.AffinitySeconds > 0 {
			fmt.Fprintf(&b, " affinity=%ds", p.AffinitySeconds)
		}
		if p.PreserveDestination {
			b.WriteString(" preserve-destination")
		}
		fmt.Fprintf(&b, "\n  cluster %s\n  local   %s\n", p.View(nil).ClusterEndpoints, p.View(nil).LocalEndpoints)
		if w := p.View(nil).Weights; w != nil {
			fmt.Fprintf(&b, "  weights %v\n", w)
		}
		if p.Serving != nil {
			fmt.Fprintf(&b, "  serving %v\n", p.Serving)
		}
		for _, f := range p.Frontends {
			at := fmt.Sprintf("*:%d", f.Port)
			if f.Address.IsValid() {
				at = netip.AddrPortFrom(f.Address, f.Port).String()
			}
			fmt.Fprintf(&b, "  %s %s %s, empty: %s", f.Type, at, f.Policy, f.WhenEmpty)
			if len(f.SourceRanges) > 0 {
				fmt.Fprintf(&b, ", from %v", f.SourceRanges)
			}
			if f.ShadowedBy != "" {
				fmt.Fprintf(&b, ", shadowed by %s", f.ShadowedBy)
			}
			b.WriteByte('\n')
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(m.HealthChecks), k8s.ServiceName.Compare) {
		h := m.HealthChecks[name]
		fmt.Fprintf(&b, "health check of %s at %d: local IPv4 %d, IPv6 %d\n", name, h.Port, h.Local4, h.Local6)
	}
	for _, w := range m.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}
