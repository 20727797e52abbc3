package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// problems returns the refusals and notices of the data planes by Service port, and in notes which of them
// are unknown. Those about all ports of a Service have a key with its ServiceName alone.
func (p *planes) problems(ctx context.Context) (of map[k8s.PortName][]string, notes []string, err error) {
	of = map[k8s.PortName][]string{}
	for _, pl := range p.all {
		s, err := pl.Status(ctx)
		if err != nil {
			return nil, nil, err
		}
		if s.Busy {
			notes = append(notes, "refusals by "+pl.name+" are unknown now: "+s.Why)
		}
		for _, r := range s.Refusals {
			of[r.Port] = append(of[r.Port], "refused by "+pl.name+": "+reasonOf(r))
		}
		for _, n := range s.Notices {
			of[n.Port] = append(of[n.Port], n.Text)
		}
	}
	return of, notes, nil
}

// emptyProblems returns which frontends have no endpoint in force, what happens to new connections there, and
// the reason if no node has one. HNS can neither refuse nor drop.
func emptyProblems(m mode.Mode, sp *k8s.ServicePort, why func() string) (out []string) {
	refused, dropped := "new connections are refused", "are dropped"
	if m == mode.Windows {
		refused, dropped = "HNS has no load balancer, and new connections are neither refused nor dropped",
			"are not dropped, because HNS cannot do that"
	}

	router := k8s.Router{Loopback: true}
	for _, f := range sp.Frontends {
		empty := router.Routes(sp, &f)[k8s.Outside].Empty
		if !router.Serves(&f) || empty == "" {
			continue
		}
		text := ""
		if empty == k8s.Reject {
			text = "no endpoint is in force: " + refused + ": " + why()
		} else {
			text = fmt.Sprintf("no endpoint on this node: new connections to %s (policy Local) %s",
				frontendText(&f), dropped)
			if f.Type != k8s.ClusterIP && m != mode.Windows {
				text += ", but for those of this node and its pods"
			}
		}

		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}

	return out
}

// deadPorts returns a problem for each local endpoint in force that packets cannot reach according to the
// switch's database, and for each reason why some may not.
func (s *Settings) deadPorts(sw *ovsdb.Switch, node *k8s.Node, states []k8s.EndpointState) (out []string) {
	for i := range states {
		if e := &states[i]; sw != nil && e.Local && (e.InCluster || e.InLocal) {
			out = append(out, s.portProblems(sw, node, e.Addr.Addr(), "local endpoint "+e.Addr.String())...)
		}
	}
	return out
}

// portProblems returns what the switch's database, and what ovs-vswitchd said last, have against the port of
// a pod of this node.
func (s *Settings) portProblems(sw *ovsdb.Switch, node *k8s.Node, ip netip.Addr, pod string) (out []string) {
	switch why, unknown := s.DeadPort(sw, node, ip); {
	case unknown:
		out = append(out,
			fmt.Sprintf("no port of bridge %s has the address of the %s in external_ids:ip_addresses: "+
				"packets go to it only where the bridge has learned it", sw.Bridge, pod))
	case why != "":
		out = append(out, fmt.Sprintf("nothing reaches the %s: %s", pod, why))
	}
	for _, text := range s.LimitedPort(sw, ip) {
		out = append(out, fmt.Sprintf("the port of the %s: %s", pod, text))
	}
	return out
}

func frontendText(f *k8s.Frontend) string {
	if !f.Address.IsValid() {
		return fmt.Sprintf("%s %d", f.Type, f.Port)
	}
	return fmt.Sprintf("%s %s", f.Type, netip.AddrPortFrom(f.Address, f.Port))
}

// objectProblems returns what is wrong with the Services of some ports and with their EndpointSlices. It runs
// on the loop.
func (a *Agent) objectProblems(names []k8s.PortName) map[k8s.ServiceName][]string {
	wanted := make(map[k8s.ServiceName]bool, len(names))
	for _, n := range names {
		wanted[n.ServiceName] = true
	}
	out := map[k8s.ServiceName][]string{}
	for _, list := range [][]k8s.Warning{a.problems.Errors, a.problems.Warnings, a.model.Warnings} {
		for _, w := range list {
			ref := refOf(&w)
			n, ok := a.serviceOf(ref)
			if !ok || !wanted[n] {
				continue
			}
			text := w.Text
			if w.Field != "" {
				text = w.Field + ": " + text
			}
			if ref.Kind != k8s.KindService {
				text = ref.String() + ": " + text
			}
			out[n] = append(out[n], text)
		}
	}
	return out
}

// refOf returns the object that a warning is about. Warnings of a source have no Ref, only a text that names
// the object.
func refOf(w *k8s.Warning) k8s.Ref {
	if w.Ref != (k8s.Ref{}) {
		return w.Ref
	}
	kind, name, _ := strings.Cut(w.Object, " ")
	namespace, name, _ := strings.Cut(name, "/")
	return k8s.Ref{Kind: k8s.Kind(kind), Namespace: namespace, Name: name}
}

// serviceOf returns the Service that an object is or belongs to. Of a slice that was never valid only the
// name is known: the EndpointSlice controller names slices after their Service, with a suffix.
func (a *Agent) serviceOf(ref k8s.Ref) (k8s.ServiceName, bool) {
	if n, ok := a.tracker.ServiceOf(ref); ok {
		return n, true
	}
	i := strings.LastIndexByte(ref.Name, '-')
	name := k8s.ServiceName{Namespace: ref.Namespace, Name: ref.Name[:max(i, 0)]}
	return name, ref.Kind == k8s.KindEndpointSlice && i > 0
}

// listenerProblems returns, by namespace/name:port, the processes of the node whose listening port a Service
// hides. A NodePort of both families is named in one of them.
func (a *Agent) listenerProblems() map[string][]string {
	out := map[string][]string{}
	for _, c := range a.ports.Conflicts() {
		out[c.Service.String()] = append(out[c.Service.String()], c.String())
	}
	return out
}
