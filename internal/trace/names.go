package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// Request is what a user asks for, as text. From is IP[:PORT] or pod/NAMESPACE/NAME[:PORT]; To is IP:PORT or
// [svc/]NAMESPACE/NAME[:PORT], where PORT is a number or a name. Protocol "" is TCP, or that of the named
// port.
type Request struct {
	From, To, Protocol, In string
	// Live also compares with what is installed. Reply also explains the endpoint's answer. Probe also sends
	// the packet.
	Live, Reply, Probe bool
}

// Ends is a parsed Request. Names in it replace the addresses of the Question.
type Ends struct {
	Question
	Pod     k8s.ServiceName // namespace and name of the source; zero: Question.From is the source
	Service k8s.ServiceName // of the destination; zero: Question.To is the destination
	Port    string          // of Service, a number or a name; "": its only one
	any     bool            // protocol
}

// Parse checks the syntax. Errors begin with the name of the field, after prefix.
func (r *Request) Parse(prefix string) (e Ends, err error) {
	if name, ok := strings.CutPrefix(r.From, "pod/"); ok {
		var port string
		if e.Pod, port, err = parseName(name); err == nil && port != "" {
			var n uint64
			if n, err = strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				err = fmt.Errorf("%q: the source's port is a number from 1 to 65535", r.From)
			}
			e.From = netip.AddrPortFrom(netip.Addr{}, uint16(n))
		}
	} else {
		e.From, err = ParseSource(r.From)
	}
	if err != nil {
		return e, fmt.Errorf("%sfrom: %w", prefix, err)
	}

	if strings.Contains(r.To, "/") {
		name := strings.TrimPrefix(strings.TrimPrefix(r.To, "svc/"), "service/")
		e.Service, e.Port, err = parseName(name)
	} else {
		e.To, err = ParseDestination(r.To)
	}
	if err != nil {
		return e, fmt.Errorf("%sto: %w", prefix, err)
	}

	if e.Protocol, err = ParseProtocol(r.Protocol); err != nil {
		return e, fmt.Errorf("%sprotocol: %w", prefix, err)
	}

	e.In, e.any = r.In, r.Protocol == ""
	if e.Addressed() {
		err = e.Validate()
	}
	return e, err
}

// Addressed reports whether both ends are addresses, not names.
func (e *Ends) Addressed() bool { return e.From.Addr().IsValid() && e.To.IsValid() }

// parseName reads NAMESPACE/NAME[:PORT].
func parseName(s string) (name k8s.ServiceName, port string, err error) {
	full, port, colon := strings.Cut(s, ":")
	namespace, short, ok := strings.Cut(full, "/")
	if !ok || namespace == "" || short == "" || strings.Contains(short, "/") || colon && port == "" {
		return name, "", fmt.Errorf("%q is not NAMESPACE/NAME or NAMESPACE/NAME:PORT", s)
	}
	return k8s.ServiceName{Namespace: namespace, Name: short}, port, nil
}

// Resolve replaces the names with addresses: a Service with its ClusterIP, and the source with one of pod,
// the addresses of the pod that it names. If both ends have several, the first address of the pod decides
// whose family the Service has as well. steps says what the names stand for.
func (e *Ends) Resolve(m *k8s.Model, pod []netip.Addr) (q Question, steps []string, err error) {
	q = e.Question
	if e.Pod != (k8s.ServiceName{}) {
		if len(pod) == 0 {
			return q, nil, fmt.Errorf("pod %s has no address", e.Pod)
		}
	} else {
		pod = []netip.Addr{q.From.Addr()}
	}

	if e.Service != (k8s.ServiceName{}) {
		port, frontend, client, err := e.frontend(m, pod)
		if err != nil {
			return q, nil, err
		}
		q.To, q.Protocol = netip.AddrPortFrom(frontend.Address, frontend.Port), port.Name.Protocol
		pod = []netip.Addr{client}
		steps = append(steps, fmt.Sprintf("Service %s is %s/%s, its cluster IP",
			portText(port.Name), q.To, q.Protocol))
	} else if ip := k8s.FamilyOf(q.To.Addr()).First(pod); ip.IsValid() {
		pod = []netip.Addr{ip}
	}

	q.From = netip.AddrPortFrom(pod[0], q.From.Port())
	if e.Pod != (k8s.ServiceName{}) {
		steps = append([]string{fmt.Sprintf("pod %s is %s", e.Pod, q.From.Addr())}, steps...)
	}
	return q, steps, q.Validate()
}

// frontend returns the ClusterIP frontend that the destination names, and the first of the client's addresses
// of its family.
func (e *Ends) frontend(
	m *k8s.Model,
	clients []netip.Addr,
) (port *k8s.ServicePort, f *k8s.Frontend, client netip.Addr, err error) {
	ports := e.ports(m)
	if len(ports) == 0 {
		return nil, nil, client, e.unknownService(m)
	}

	matching := slices.DeleteFunc(slices.Clone(ports), func(p *k8s.ServicePort) bool { return !e.wants(p) })
	isAnother := func(p *k8s.ServicePort) bool { return p.Name.Port != matching[0].Name.Port }
	if e.Port == "" && slices.ContainsFunc(matching, isAnother) {
		return nil, nil, client, fmt.Errorf("the Service %s has several ports, %s: "+
			"name one, such as svc/%s:%s", e.Service, portNumbers(ports), e.Service, matching[0].Name.Port)
	}
	if len(matching) == 0 {
		what := "port " + e.Port
		if !e.any {
			what = strings.TrimSuffix("port "+e.Port, " ") + "/" + string(e.Protocol)
		}
		return nil, nil, client, fmt.Errorf("the Service %s has no %s, only %s",
			e.Service, what, portNumbers(ports))
	}

	for _, client := range clients {
		for _, p := range matching {
			if f := clusterIP(p); f != nil && p.Name.Family == k8s.FamilyOf(client) {
				return p, f, client, nil
			}
		}
	}
	return nil, nil, client, fmt.Errorf("the Service %s has no %s cluster IP in force, "+
		"which the client %s needs", e.Service, k8s.FamilyOf(clients[0]), clients[0])
}

// ports returns the ports of the Service that the destination names: TCP first, then by name.
func (e *Ends) ports(m *k8s.Model) (list []*k8s.ServicePort) {
	for name, p := range m.Ports {
		if name.ServiceName == e.Service {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *k8s.ServicePort) int {
		return cmp.Or(cmp.Compare(a.Name.Protocol, b.Name.Protocol), a.Name.Compare(b.Name))
	})
	slices.SortStableFunc(list, func(a, b *k8s.ServicePort) int { return isTCP(b) - isTCP(a) })
	return list
}

func isTCP(p *k8s.ServicePort) int {
	if p.Name.Protocol == "TCP" {
		return 1
	}
	return 0
}

// wants reports whether a port is the one that the destination names.
func (e *Ends) wants(p *k8s.ServicePort) bool {
	if !e.any && p.Name.Protocol != e.Protocol {
		return false
	}
	f := clusterIP(p)
	return e.Port == "" || e.Port == p.Name.Port || f != nil && e.Port == strconv.Itoa(int(f.Port))
}

func clusterIP(p *k8s.ServicePort) *k8s.Frontend {
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Type == k8s.ClusterIP && f.ShadowedBy == "" {
			return f
		}
	}
	return nil
}

// portNumbers names the ports of a Service, each once.
func portNumbers(ports []*k8s.ServicePort) string {
	var list []string
	for _, p := range ports {
		if f := clusterIP(p); f != nil {
			text := fmt.Sprintf("%d/%s", f.Port, p.Name.Protocol)
			if p.Name.Port != "" {
				text += " (" + p.Name.Port + ")"
			}
			list = append(list, text)
		}
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(list))), ", ")
}

func (e *Ends) unknownService(m *k8s.Model) error {
	var all []string
	for name := range m.Ports {
		all = append(all, name.ServiceName.String())
	}
	return fmt.Errorf("no Service %s is served on node %s%s",
		e.Service, m.Node.Name, DidYouMean(e.Service.Name, all))
}
