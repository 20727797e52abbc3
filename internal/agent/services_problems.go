package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// refusals gives what the data planes do not take, by refusalKey. HNS names Services in its own way
// (portProblems).
func (p *planes) refusals(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	if p.bridge != nil {
		refused, err := p.bridge.Refusals(ctx)
		if err != nil {
			return nil, err
		}
		for n, why := range refused {
			out[refusalKey(n)] = append(out[refusalKey(n)], "refused by the switch: "+why)
		}
		full, limit, err := p.bridge.AffinityFull(ctx)
		if err != nil {
			return nil, err
		}
		for _, n := range full {
			out[refusalKey(n)] = append(out[refusalKey(n)], fmt.Sprintf("session affinity remembers %d clients, its limit (--affinity-limit): "+
				"further ones get an endpoint by the hash of their address", limit))
		}
	}
	if p.iptables != nil {
		for _, f := range p.iptables.Status().Families {
			for name, why := range f.Refused {
				key := f.Family + " " + name
				out[key] = append(out[key], "refused by iptables: "+why)
			}
		}
	}
	return out, nil
}

// refusalKey names a Service port as the status of the iptables data plane does, with its family.
func refusalKey(n k8s.PortName) string { return fmt.Sprintf("%s %s (%s)", n.Family, n, n.Protocol) }

// emptyProblems says which frontends have no endpoint in force, what becomes of new connections there, and why, if there is
// none anywhere.
func emptyProblems(sp *k8s.ServicePort, why func() string) (out []string) {
	for _, f := range sp.Frontends {
		if f.ShadowedBy != "" || len(sp.Endpoints(f.Policy)) > 0 {
			continue
		}
		text := ""
		if f.WhenEmpty != k8s.Drop {
			text = "no endpoint is in force: new connections are refused: " + why()
		} else {
			text = fmt.Sprintf("no endpoint on this node: new connections to %s (policy Local) are dropped", frontendText(&f))
			if f.Type != k8s.ClusterIP {
				text += ", but for those of this node and its pods"
			}
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

func frontendText(f *k8s.Frontend) string {
	if !f.Address.IsValid() {
		return fmt.Sprintf("%s %d", f.Type, f.Port)
	}
	return fmt.Sprintf("%s %s", f.Type, netip.AddrPortFrom(f.Address, f.Port))
}

// objectProblems gives what is wrong with the Services of some ports and with their EndpointSlices. It runs on the loop.
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

// refOf gives the object that a warning is about: what a source says comes before a Tracker, as a text.
func refOf(w *k8s.Warning) k8s.Ref {
	if w.Ref != (k8s.Ref{}) {
		return w.Ref
	}
	kind, name, _ := strings.Cut(w.Object, " ")
	namespace, name, _ := strings.Cut(name, "/")
	return k8s.Ref{Kind: k8s.Kind(kind), Namespace: namespace, Name: name}
}

// serviceOf gives the Service that an object is or belongs to. A slice that never was in order is known by its name alone:
// the controller that makes slices names them after their Service, with a suffix.
func (a *Agent) serviceOf(ref k8s.Ref) (k8s.ServiceName, bool) {
	if n, ok := a.tracker.ServiceOf(ref); ok {
		return n, true
	}
	i := strings.LastIndexByte(ref.Name, '-')
	return k8s.ServiceName{Namespace: ref.Namespace, Name: ref.Name[:max(i, 0)]}, ref.Kind == k8s.KindEndpointSlice && i > 0
}

// portProblems adds what processes of the node listen on that a Service hides, and what HNS does not do.
func (a *Agent) portProblems(list *ServiceList) {
	said := map[string][]string{} // by namespace/name:port, or namespace/name for all of a Service
	for _, c := range a.ports.Conflicts() {
		said[c.Service.String()] = append(said[c.Service.String()], c.String())
	}
	if a.hns != nil {
		st := a.hns.Status()
		for _, f := range st.Failures {
			said[f.Service] = append(said[f.Service], "refused by HNS: "+f.Error)
		}
		for _, u := range st.Unsupported {
			said[u.Service] = append(said[u.Service], "not supported by HNS: "+u.Reason)
		}
	}
	if len(said) == 0 {
		return
	}
	for i := range list.Services {
		s := &list.Services[i]
		name := k8s.PortName{ServiceName: k8s.ServiceName{Namespace: s.Namespace, Name: s.Name}, Port: s.Port}
		for _, key := range slices.Compact([]string{name.String(), name.ServiceName.String()}) {
			s.Problems = append(s.Problems, said[key]...)
		}
	}
}
