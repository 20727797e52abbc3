package windows

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// echoes are the ways in which an HNS may return something else than it was asked for.
var echoes = []struct {
	name  string
	alter func(kind string, o hnsfake.Object)
}{
	{"none", nil},
	{"load balancer: one more flag", onKind("LoadBalancer", func(o hnsfake.Object) { o["Flags"] = number(o["Flags"]) + 64 })},
	{"load balancer: another flag", onKind("LoadBalancer", func(o hnsfake.Object) { o["Flags"] = 4 })},
	{"load balancer: no flags", onKind("LoadBalancer", func(o hnsfake.Object) { delete(o, "Flags") })},
	{"load balancer: other port mapping flags", onMapping(func(m map[string]any) { m["Flags"] = number(m["Flags"]) + 32 })},
	{"load balancer: no distribution", onMapping(func(m map[string]any) { delete(m, "DistributionType") })},
	{"load balancer: no source VIP", onKind("LoadBalancer", func(o hnsfake.Object) { delete(o, "SourceVIP") })},
	{"load balancer: another source VIP", onKind("LoadBalancer", func(o hnsfake.Object) { o["SourceVIP"] = nodeIP })},
	{"endpoint: one more flag", onKind("Endpoint", func(o hnsfake.Object) { o["Flags"] = number(o["Flags"]) + 8 })},
	{"endpoint: no flags", onKind("Endpoint", func(o hnsfake.Object) { delete(o, "Flags") })},
	{"endpoint: MAC in upper case", onKind("Endpoint", func(o hnsfake.Object) { o["MacAddress"] = strings.ToUpper(o["MacAddress"].(string)) })},
	{"endpoint: MAC in upper case, with colons", onKind("Endpoint", func(o hnsfake.Object) {
		o["MacAddress"] = strings.ToUpper(strings.ReplaceAll(o["MacAddress"].(string), "-", ":"))
	})},
	{"endpoint: another MAC", onKind("Endpoint", func(o hnsfake.Object) { o["MacAddress"] = "00-AA-BB-CC-DD-EE" })},
	{"endpoint: no MAC", onKind("Endpoint", func(o hnsfake.Object) { delete(o, "MacAddress") })},
	{"endpoint: no ProviderAddress", onKind("Endpoint", func(o hnsfake.Object) { delete(o, "Policies") })},
	{"endpoint: policies before ProviderAddress", onKind("Endpoint", func(o hnsfake.Object) {
		policies, _ := o["Policies"].([]any)
		o["Policies"] = append([]any{map[string]any{"Type": "L4Proxy", "Settings": map[string]any{}}, map[string]any{"Type": "VLAN"}}, policies...)
	})},
	{"endpoint: policies after ProviderAddress", onKind("Endpoint", func(o hnsfake.Object) {
		policies, _ := o["Policies"].([]any)
		o["Policies"] = append(policies, map[string]any{"Type": "OutBoundNAT"})
	})},
	{"endpoint: prefix length", onKind("Endpoint", func(o hnsfake.Object) {
		for _, c := range o["IpConfigurations"].([]any) {
			c.(map[string]any)["PrefixLength"] = 32
		}
	})},
	{"ids in upper case", func(_ string, o hnsfake.Object) {
		o["ID"] = strings.ToUpper(o["ID"].(string))
		if list, ok := o["HostComputeEndpoints"].([]any); ok {
			for i := range list {
				list[i] = strings.ToUpper(list[i].(string))
			}
		}
	}},
	{"ids in lower case, endpoints of load balancers in upper", onKind("LoadBalancer", func(o hnsfake.Object) {
		list, _ := o["HostComputeEndpoints"].([]any)
		for i := range list {
			list[i] = strings.ToUpper(list[i].(string))
		}
	})},
	{"ids in braces", func(_ string, o hnsfake.Object) { o["ID"] = "{" + o["ID"].(string) + "}" }},
	{"endpoints of load balancers in another order", onKind("LoadBalancer", func(o hnsfake.Object) {
		list, _ := o["HostComputeEndpoints"].([]any)
		slices.Reverse(list)
	})},
	{"schema 2.16", func(_ string, o hnsfake.Object) { o["SchemaVersion"] = map[string]any{"Major": 2, "Minor": 16} }},
}

func onKind(kind string, f func(hnsfake.Object)) func(string, hnsfake.Object) {
	return func(k string, o hnsfake.Object) {
		if k == kind && len(o) > 1 {
			f(o)
		}
	}
}

func onMapping(f func(map[string]any)) func(string, hnsfake.Object) {
	return onKind("LoadBalancer", func(o hnsfake.Object) {
		list, _ := o["PortMappings"].([]any)
		for _, m := range list {
			f(m.(map[string]any))
		}
	})
}

func number(v any) float64 {
	n, _ := v.(float64)
	return n
}

// A restart changes nothing, even if HNS changes nkp's requests; a change is one modification, and what another program changes
// is repaired.
func TestAlteredEchoes(t *testing.T) {
	table := fmt.Sprintf("%-56s %13s %16s %16s %13s %15s\n", "HNS's answer", "HNS", "writes: restart", "hourly read", "altered", "state file lost")
	for _, host := range []struct {
		network string
		hns.Version
	}{{hns.NetworkOverlay, newest}, {hns.NetworkOverlay, hns.Version{Major: 13, Minor: 2}}, {hns.NetworkL2Bridge, newest}} {
		v := host.Version
		for _, c := range echoes {
			b := newBed(t, host.network, v, func(o *Options) { o.EnableDSR = true })
			if c.alter != nil {
				b.hns.SetEcho(c.alter)
			}
			b.many(nightly.Count(8, 20), 2)
			b.service("affinity", v1.ServiceSpec{ClusterIP: "10.99.9.1", Ports: tcp(80, 8080), SessionAffinity: v1.ServiceAffinityClientIP})
			b.slice("affinity", tcp(0, 8080), "100.244.1.1")
			b.good()
			what := fmt.Sprintf("%s, HNS %s, %s", host.network, v, c.name)
			if n := strings.Count(b.log.String(), "stores an object differently"); n > 1 {
				t.Errorf("%s: %d warnings, want one for all objects", what, n)
			}
			b.restart()
			restart := writes(b.good())
			b.clock = b.clock.Add(2 * defaultFullAudit)
			hourly := writes(b.good()) + writes(b.good())
			altered := b.plane.Detail().Objects.Altered

			// A change of the Service is followed once, and what another program changes is repaired.
			b.simple("web-007", "10.99.0.8", "100.244.1.15", "100.244.1.16", "100.244.2.240")
			change := b.good()
			if n, d := hnsfake.Count(change, "HcnModifyLoadBalancer"), deletions(change); v == newest && (n != 1 || d != 0) {
				t.Errorf("%s: a change took %d modifications and %d deletions of load balancers", what, n, d)
			}
			b.mustHave("10.99.0.8", 80, "100.244.1.15", "100.244.1.16", "100.244.2.240")
			if n := writes(b.good()); n != 0 {
				t.Errorf("%s: %d writes after a change", what, n)
			}
			b.hns.ChangeLoadBalancer(b.loadBalancer("10.99.0.3", 80).ID, func(o hnsfake.Object) {
				o["HostComputeEndpoints"] = o["HostComputeEndpoints"].([]any)[:1]
			})
			b.restart()
			b.good()
			b.mustHave("10.99.0.3", 80, "100.244.1.5", "100.244.1.6")
			if n := writes(b.good()); n != 0 {
				t.Errorf("%s: %d writes after a repair", what, n)
			}

			// Without the state file nkp repairs what it takes for changed by another program, once.
			must(t, os.Remove(b.opts.StateFile))
			b.restart()
			calls := b.good()
			if n := deletions(calls); v == newest && n > 1 {
				t.Errorf("%s: without the state file %d load balancers were deleted", what, n)
			}
			b.restart()
			if n := writes(b.good()); n != 0 {
				t.Errorf("%s: %d writes at the second restart without the state file", what, n)
			}
			table += fmt.Sprintf("%-56s %8s %4s %16d %16d %13d %15d\n", c.name, host.network, v, restart, hourly, altered, writes(calls))
			if restart != 0 || hourly != 0 {
				t.Errorf("%s: %d writes at a restart, %d at a full read; want 0", what, restart, hourly)
			}
		}
	}
	t.Log("\n" + table)
}

// A state file that cannot be used is ignored, with a warning; one of an older nkp still says what is nkp's.
func TestOtherStateFiles(t *testing.T) {
	older := func(text string) string { // before objects that HNS alters were recorded
		head, _, _ := strings.Cut(text, `"altered"`)
		return strings.TrimRight(head, " \n,") + "\n}"
	}
	for _, c := range []struct {
		name string
		text func(string) string
		warn string
	}{
		{"older", older, ""},
		{"not JSON", func(string) string { return "{" }, "cannot use the state file"},
		{"altered is no map", func(s string) string { return strings.Replace(s, `"altered": {`, `"altered": [], "x": {`, 1) }, "cannot use the state file"},
		{"another version", func(s string) string { return strings.Replace(s, `"version": 1`, `"version": 9`, 1) }, "cannot use the state file"},
		{"too large", func(s string) string { return s + strings.Repeat(" ", 64<<20) }, "larger than 64 MiB"},
	} {
		b := newBed(t, hns.NetworkOverlay, newest)
		b.hns.SetEcho(onKind("LoadBalancer", func(o hnsfake.Object) { o["Flags"] = number(o["Flags"]) + 64 }))
		b.many(5, 2)
		b.good()
		before := b.hns.Dump()
		text, err := os.ReadFile(b.opts.StateFile)
		if err != nil || !strings.Contains(string(text), `"altered": {`) {
			t.Fatalf("%v\n%s", err, text)
		}
		must(t, os.WriteFile(b.opts.StateFile, []byte(c.text(string(text))), 0o600))
		b.log.Reset()
		b.restart()
		calls := b.good()
		if got := b.hns.Dump(); got != before || deletions(calls) > 1 {
			t.Errorf("%s: %d load balancers were deleted; HNS has\n%s", c.name, deletions(calls), got)
		}
		if c.warn != "" != strings.Contains(b.log.String(), "cannot use the state file") || !strings.Contains(b.log.String(), c.warn) {
			t.Errorf("%s: the log has\n%s", c.name, b.log.String())
		}
		b.tracker.DeleteService("default", "web-000")
		b.good()
		if b.loadBalancer("10.99.0.1", 80) != nil {
			t.Errorf("%s: the load balancer of a deleted Service stays", c.name)
		}
	}
}

// Reports of nkp hns-selftest in testdata/echoes: at a restart on an HNS that stores objects as the recorded one did, nothing is written.
// A new file there is a new test.
func TestRecordedEchoes(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "echoes", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no reports: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			must(t, err)
			var report struct {
				HNS         hns.Version
				NetworkType string
				Objects     []struct{ Altered bool }
			}
			must(t, json.Unmarshal(text, &report))
			echo, err := hnsfake.Replay(text)
			must(t, err)
			networkType := hns.NetworkL2Bridge
			if report.NetworkType == hns.NetworkOverlay {
				networkType = hns.NetworkOverlay
			}
			b := newBed(t, networkType, report.HNS)
			b.hns.SetEcho(echo)
			b.many(20, 2)
			b.service("affinity", v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: "10.99.9.1", SessionAffinity: v1.ServiceAffinityClientIP,
				Ports: []v1.ServicePort{{Port: 80, NodePort: 30080, TargetPort: intstr.FromInt32(8080)}}})
			b.slice("affinity", tcp(0, 8080), "100.244.1.1")
			b.good()
			if n := writes(b.good()); n != 0 {
				t.Errorf("%d writes at the next sync", n)
			}
			b.restart()
			if n := writes(b.good()); n != 0 {
				t.Errorf("%d writes at a restart", n)
			}
			altered := slices.Contains(report.Objects, struct{ Altered bool }{true})
			if n := b.plane.Detail().Objects.Altered; (n > 0) != altered {
				t.Errorf("%d objects are altered; by the report %t", n, altered)
			}
		})
	}
}
