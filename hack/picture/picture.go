package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Places that are no tables.
const (
	arrival    = "packet"
	groups     = "groups"
	controller = "nkp"
	away       = "out"
)

// edge is a way that packets take, and by what.
type edge struct{ from, to, by string }

// graph is what leads where.
type graph map[edge]bool

// draw returns the pipeline in Graphviz's language.
func draw() ([]byte, error) {
	c, err := pipeline.NewCompiler(config())
	if err != nil {
		return nil, err
	}
	ports := map[k8s.PortName]*k8s.ServicePort{}
	for _, p := range shapes() {
		ports[p.Name] = p
	}
	c.Update(ports)
	g := graph{{arrival, table(0), ""}: true}
	for _, f := range c.State().Flows {
		g.actions(table(f.Table), f.Actions)
	}
	for _, group := range c.State().Groups {
		for _, b := range group.Buckets {
			g.actions(groups, b.Actions)
		}
	}
	return g.dot(), nil
}

func table(n uint8) string { return fmt.Sprint("table ", n) }

func (g graph) actions(from string, list []flow.Action) {
	for _, a := range list {
		switch a := a.(type) {
		case flow.CT:
			if a.Table != flow.NoTable {
				g[edge{from, table(a.Table), tracking(a)}] = true
			}
		case flow.Resubmit:
			if a.Table == 0 { // the exit, to flows of others
				g[edge{from, away, ""}] = true
				continue
			}
			g[edge{from, table(a.Table), ""}] = true
		case flow.ToGroup:
			g[edge{from, groups, "group"}] = true
		case flow.Learn:
			g[edge{from, table(a.Table), "learn"}] = true
		case flow.ToController:
			g[edge{from, controller, "packet-in"}] = true
		case flow.Output:
			g[edge{from, away, ""}] = true
		}
	}
}

// tracking returns in short what the connection tracker does.
func tracking(a flow.CT) string {
	words := []string{fmt.Sprint("zone ", a.Zone)}
	if a.Commit {
		words[0] = "commit, " + words[0]
	}
	switch a.NAT.Kind {
	case flow.NATExisting:
		words = append(words, "nat")
	case flow.NATDst:
		words = append(words, "nat(dst=endpoint)")
	case flow.NATSrc:
		if a.NAT.Addr.IsUnspecified() {
			words = append(words, "nat(src)")
		} else {
			words = append(words, "nat(src=node)")
		}
	}
	return "ct(" + strings.Join(words, ",\n") + ")"
}

// dot writes the graph: edges between the same places are one, with all that they are by.
func (g graph) dot() []byte {
	by := map[edge][]string{}
	used := map[string]bool{}
	for e := range g {
		k := edge{e.from, e.to, ""}
		if by[k] == nil {
			by[k] = []string{}
		}
		if e.by != "" {
			by[k] = append(by[k], e.by)
		}
		used[e.from], used[e.to] = true, true
	}
	var b bytes.Buffer
	b.WriteString("// Written by \"make picture\" from compiled flows and groups. Do not edit.\n")
	b.WriteString("digraph pipeline {\n  rankdir=LR; bgcolor=white; nodesep=0.3; ranksep=0.35;\n")
	b.WriteString("  node [shape=box, style=\"rounded,filled\", fillcolor=\"#eef3fb\", color=\"#3b5f9e\", fontname=\"Helvetica\", fontsize=12];\n")
	b.WriteString("  edge [color=\"#55606e\", fontname=\"Helvetica\", fontsize=10, fontcolor=\"#333333\"];\n")
	for _, name := range slices.Sorted(maps.Keys(used)) {
		label, look := name, ""
		switch name {
		case arrival:
			label, look = "packet", `, shape=plaintext, style=""`
		case groups:
			label, look = "select groups\none bucket an endpoint", `, fillcolor="#fdf2dd", color="#b7791f"`
		case controller:
			label, look = "nkp answers:\nTCP RST, port unreachable", `, fillcolor="#fbe9e7", color="#b23b2e"`
		case away:
			label, look = "out", `, shape=plaintext, style=""`
		default:
			var n int
			fmt.Sscanf(name, "table %d", &n)
			label += "\n" + pipeline.TableName(n)
		}
		fmt.Fprintf(&b, "  %q [label=%q%s];\n", name, label, look)
	}
	for _, k := range slices.SortedFunc(maps.Keys(by), func(x, y edge) int {
		return cmp.Or(cmp.Compare(x.from, y.from), cmp.Compare(x.to, y.to))
	}) {
		look := ""
		if slices.Equal(by[k], []string{"learn"}) {
			look = ", style=dashed, constraint=false"
		}
		slices.Sort(by[k])
		fmt.Fprintf(&b, "  %q -> %q [label=%q%s];\n", k.from, k.to, strings.Join(by[k], "\n"), look)
	}
	b.WriteString("}\n")
	return b.Bytes()
}

func config() pipeline.Config {
	return pipeline.Config{
		Layout:        pipeline.DefaultLayout(),
		NodeIPs:       []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		LocalIPs:      []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		HairpinIPs:    []netip.Addr{netip.MustParseAddr("169.254.110.107")},
		NodeMAC:       flow.MAC{2, 0, 0, 0, 0, 1},
		GatewayMAC:    flow.MAC{2, 0, 0, 0, 0, 2},
		Uplink:        1,
		Detector:      k8s.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		ServiceCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		LocalDelivery: true,
		Pods:          []pipeline.Pod{{IP: netip.MustParseAddr("10.0.0.11"), OFPort: 11, MAC: flow.MAC{2, 0, 0, 0, 0, 11}}},
		RejectRate:    pipeline.DefaultRejectRate,
	}
}

// shapes are Service ports that together use every table.
func shapes() []*k8s.ServicePort {
	port := func(name string, endpoints int, f k8s.Frontend) *k8s.ServicePort {
		p := &k8s.ServicePort{Name: k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "default", Name: name}, Protocol: "TCP", Family: k8s.IPv4}}
		for i := range endpoints {
			p.ClusterEndpoints = append(p.ClusterEndpoints, k8s.Endpoint{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(1 + i/250), byte(i % 250)}), 8080)})
		}
		f.Port, f.Policy, f.WhenEmpty = 80, k8s.Cluster, k8s.Reject
		p.Frontends = []k8s.Frontend{f}
		return p
	}
	address := netip.MustParseAddr
	pinned := port("pinned", 3, k8s.Frontend{Type: k8s.ClusterIP, Address: address("10.96.0.3")})
	pinned.AffinitySeconds = 10800
	return []*k8s.ServicePort{
		port("plain", 3, k8s.Frontend{Type: k8s.ClusterIP, Address: address("10.96.0.1")}),
		port("empty", 0, k8s.Frontend{Type: k8s.ClusterIP, Address: address("10.96.0.2")}),
		pinned,
		port("ranges", 3, k8s.Frontend{Type: k8s.LoadBalancer, Address: address("203.0.113.1"),
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}),
		port("wide", 300, k8s.Frontend{Type: k8s.ClusterIP, Address: address("10.96.0.4")}),
		port("nodeport", 3, k8s.Frontend{Type: k8s.NodePort}),
	}
}
