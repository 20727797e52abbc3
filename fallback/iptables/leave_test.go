package iptables

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// What kube-proxy 1.37 makes in chains of others (pkg/proxy/iptables/proxier.go, iptablesJumpChains).
var kubeProxyJumps = map[string][]string{
	"filter INPUT": {
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES`,
		`-m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS`,
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`,
	},
	"filter FORWARD": {
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES`,
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
		`-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`,
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`,
	},
	"filter OUTPUT": {
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
		`-m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`,
	},
	"nat PREROUTING":  {`-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`},
	"nat OUTPUT":      {`-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`},
	"nat POSTROUTING": {`-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`},
}

// nkpBeside returns tables with what nkp makes in a scope, and, with serves, what kube-proxy has made of them since.
func nkpBeside(t *testing.T, scope serving.Scope, serves bool) *fakeTables {
	t.Helper()
	c := serving.Config{Scope: scope, PodDevice: "br-int", LocalhostNodePorts: true}
	fixed := rules.NewCompiler(c, k8s.IPv4, &k8s.Model{}).Fixed()
	f := newFakeTables()
	for table, chains := range fixed.Shared {
		for _, name := range chains {
			f.tables[string(table)][name] = nil
		}
	}
	for table, chains := range fixed.Chains {
		for _, chain := range chains {
			f.tables[string(table)][chain.Name] = nil
		}
	}
	f.tables["filter"][rules.LocalFirewall] = nil
	if !serves { // kube-proxy writes the chain anew
		for _, r := range fixed.Last {
			f.tables[string(r.Table)][r.Chain] = append(f.tables[string(r.Table)][r.Chain], string(r.Rule))
		}
	}
	for _, h := range fixed.Hooks {
		f.tables[string(h.Table)][h.Parent] = append(f.tables[string(h.Table)][h.Parent], string(h.Rule))
	}
	if serves {
		f.tables["filter"]["KUBE-FORWARD"], f.tables["nat"]["KUBE-SVC-X"] = nil, nil
		for at, list := range kubeProxyJumps {
			table, parent, _ := strings.Cut(at, " ")
			for _, r := range list {
				if !slices.Contains(f.tables[table][parent], r) { // iptables-restore's caller looks first
					f.tables[table][parent] = slices.Insert(f.tables[table][parent], 0, r)
				}
			}
		}
	}
	return f
}

// A kube-proxy that serves again is recognized in each scope that nkp has beside a bridge. What is left then is kube-proxy's: each of its
// jumps and chains, and no jump that it does not know and that would keep it from deleting its chains.
func TestLeaveToKubeProxy(t *testing.T) {
	for scope, what := range map[serving.Scope]string{serving.Host: "host", serving.Own: "own"} {
		t.Run(what, func(t *testing.T) {
			if serves, err := kubeProxyServes(t.Context(), nkpBeside(t, scope, false)); serves || err != nil {
				t.Errorf("nkp alone: kube-proxy serves: %t, %v", serves, err)
			}
			f := nkpBeside(t, scope, true)
			serves, err := kubeProxyServes(t.Context(), f)
			if !serves || err != nil {
				t.Fatalf("kube-proxy serves: %t, %v", serves, err)
			}
			n, err := removeAll(t.Context(), f, func(string) bool { return true }, 100, true, true)
			if err != nil || n.Left != 2 || n.Rules == 0 {
				t.Errorf("removed %+v, %v", n, err)
			}
			for table, chains := range f.tables {
				for _, parent := range slices.Sorted(maps.Keys(chains)) {
					if strings.HasPrefix(parent, "KUBE-") {
						continue
					}
					got := slices.DeleteFunc(slices.Clone(chains[parent]), func(r string) bool { return rules.Rule(r).Target() == rules.LocalFirewall })
					want := slices.Clone(kubeProxyJumps[table+" "+parent])
					slices.Sort(got)
					slices.Sort(want)
					if !slices.Equal(got, want) {
						t.Errorf("table %s, chain %s has\n%s\nwant\n%s", table, parent, strings.Join(got, "\n"), strings.Join(want, "\n"))
					}
				}
			}
			if has(f.tables["filter"], rules.ClusterIPs) {
				t.Errorf("%s, which kube-proxy does not know, is left", rules.ClusterIPs)
			}
			if !has(f.tables["nat"], "KUBE-SVC-X") || !has(f.tables["filter"], "KUBE-FORWARD") || !has(f.tables["filter"], rules.LocalFirewall) {
				t.Errorf("a chain of kube-proxy's is gone: %v", f.tables)
			}
		})
	}
	// Where nkp serves everything its jumps are kube-proxy's, so that they cannot be distinguished.
	if serves, err := kubeProxyServes(t.Context(), nkpBeside(t, serving.Everything, true)); serves || err != nil {
		t.Errorf("scope everything: kube-proxy serves: %t, %v", serves, err)
	}
}
