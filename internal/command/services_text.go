package command

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

// servicesText writes a list of Service ports for people: a line for each, with what belongs to it below.
type servicesText struct {
	table
	wide    bool
	nodes   []string // of a cluster: those that serve each Service port, in the order of the list
	watched bool     // with rates
	seconds float64  // between before and now; 0: there is no before
	before  map[string]*k8s.Counters
}

// serviceHeads are the columns of a list of Service ports.
var serviceHeads = []string{"SERVICE", "FAMILY", "FRONTENDS", "ENDPOINTS",
	"CONNECTIONS", "PKTS IN", "PKTS OUT", "BYTES IN", "BYTES OUT"}

// writeServices prints a list. With rates, the Service ports with the most packets per second since before
// come first. A width above 0 is the terminal's: columns that do not fit are left out.
func writeServices(out io.Writer, list, before *api.ServiceList, wide, rates bool, width int) error {
	if len(list.Services) == 0 {
		if _, err := fmt.Fprintf(out, "no Service is served on node %s that fits\n", list.Node); err != nil {
			return err
		}
		return writeNotes(out, list)
	}
	t := &servicesText{wide: wide, watched: rates, before: map[string]*k8s.Counters{}}
	if before != nil {
		t.seconds = list.Time.Sub(before.Time).Seconds()
		for i := range before.Services {
			t.before[serviceKey(&before.Services[i])] = before.Services[i].Counters
		}
	}
	return t.write(out, list, width)
}

// write prints a list with at least one Service port.
func (t *servicesText) write(out io.Writer, list *api.ServiceList, width int) error {
	heads, services := slices.Clone(serviceHeads), list.Services
	if t.nodes != nil {
		heads = append(heads, "NODES")
	}
	if t.watched {
		heads = append(heads, "CONN/S", "PKTS/S IN", "PKTS/S OUT", "BYTES/S IN", "BYTES/S OUT")
		services = slices.Clone(services)
		slices.SortStableFunc(services, t.byRate)
	}
	t.row(heads...)
	for i := range services {
		t.service(&services[i], t.nodes[min(i, len(t.nodes)):min(i+1, len(t.nodes))])
	}
	if err := t.flush(out, width); err != nil {
		return err
	}
	return writeNotes(out, list)
}

// service writes the line of a Service port, and what belongs to it below. nodes is its cell of NODES, if
// there is that column.
func (t *servicesText) service(s *api.ServiceInfo, nodes []string) {
	inForce := 0
	for _, e := range s.Endpoints {
		if e.InForce {
			inForce++
		}
	}

	cells := []string{
		serviceText(s), s.Family, frontendsText(s.Frontends), fmt.Sprintf("%d/%d", inForce, len(s.Endpoints)),
	}
	if s.MoreFrontends > 0 {
		cells[2] += fmt.Sprintf(" and %d more", s.MoreFrontends)
	}
	if s.MoreEndpoints > 0 {
		cells[3] = fmt.Sprintf("%d", len(s.Endpoints)+s.MoreEndpoints)
	}
	cells = append(append(cells, counterCells(s.Counters)...), nodes...)
	if t.watched {
		cells = append(cells, t.rateCells(s)...)
	}
	t.row(cells...)

	for _, f := range s.Frontends {
		if t.wide || f.NotServed != "" {
			t.below(frontendText(&f))
		}
	}
	if t.wide {
		for _, e := range s.Endpoints {
			t.below(endpointText(&e))
		}
		for _, c := range s.Connections {
			t.below(connectionText(&c))
		}
		if s.MoreConnections > 0 {
			t.below("and " + dataplane.Count(s.MoreConnections, "more connection"))
		}
		if s.RemovedEndpoints != "" {
			t.below("TCP connections to removed endpoints are closed (" + s.RemovedEndpoints + ")")
		}
	}

	if s.Counters != nil {
		for _, why := range k8s.ServiceDropReasons {
			if n := s.Counters.Dropped[why]; n > 0 {
				t.below(fmt.Sprintf("%s: %s", why.Text(), dataplane.Count(int(n), "packet")))
			}
		}
	}

	for _, p := range s.Problems {
		t.below("PROBLEM: " + p)
	}
}

// frontendText returns whether a frontend is served, and for which clients.
func frontendText(f *api.FrontendInfo) string {
	if f.NotServed != "" {
		return fmt.Sprintf("%s %s, NOT served: %s", f.Type, frontendAddress(f), f.NotServed)
	}
	text := fmt.Sprintf("%s %s, policy %s", f.Type, frontendAddress(f), f.Policy)
	if len(f.SourceRanges) > 0 {
		text += ", only from " + strings.Join(f.SourceRanges, ", ")
	}
	if f.ShadowedBy != "" {
		text += ", NOT served: it belongs to " + f.ShadowedBy
	}
	return text
}

func serviceKey(s *api.ServiceInfo) string { return serviceText(s) + " " + s.Family }

// serviceText returns namespace/name:port/PROTOCOL.
func serviceText(s *api.ServiceInfo) string {
	name := s.Namespace + "/" + s.Name
	if s.Port != "" {
		name += ":" + s.Port
	}
	if s.Protocol == "" {
		return name // all of its ports
	}
	return name + "/" + s.Protocol
}

// frontendsText returns the addresses with their ports, NodePorts as node:PORT; what is not served is in
// brackets.
func frontendsText(list []api.FrontendInfo) string {
	texts := make([]string, 0, len(list))
	for i := range list {
		text := frontendAddress(&list[i])
		if list[i].ShadowedBy != "" || list[i].NotServed != "" {
			text = "(" + text + ")"
		}
		texts = append(texts, text)
	}
	return cmp.Or(strings.Join(texts, " "), "-")
}

func frontendAddress(f *api.FrontendInfo) string {
	return net.JoinHostPort(cmp.Or(f.Address, "node"), strconv.Itoa(int(f.Port)))
}

func endpointText(e *api.EndpointInfo) string {
	text := "endpoint " + e.Address
	if e.Pod != "" {
		text += ", pod " + e.Pod
	}

	switch {
	case e.Local:
		text += ", on this node"
	case e.Node != "":
		text += ", on " + e.Node
	}

	if e.Zone != "" {
		text += ", zone " + e.Zone
	}

	if e.Weight != nil && *e.Weight > 0 {
		text += ", weight " + strconv.Itoa(*e.Weight)
	}

	switch {
	case !e.InForce:
		text += ": NOT in force: " + e.Why
	case e.Why != "":
		text += ": in force; " + e.Why
	default:
		text += ": in force"
	}

	if c := e.Connections; c != nil && c.Unanswered+c.Refused > 0 {
		text += "; TCP connections: " + c.String()
	}

	return text
}

// connectionText returns a connection with its state and when its conntrack entry expires.
func connectionText(c *dpctl.Connection) string {
	text := fmt.Sprintf("connection from %s by %s to %s", c.Client, c.Frontend, c.Endpoint)
	if c.State != "" {
		text += ", " + c.State
	}
	if c.Unanswered {
		text += ", no answer yet"
	}
	if c.Expires > 0 {
		text += fmt.Sprintf(", expires in %d s", c.Expires)
	}
	return text
}

// counterCells are connections, and packets and bytes in both directions; "-" is what is not counted.
func counterCells(c *k8s.Counters) []string {
	cells := []string{"-", "-", "-", "-", "-"}
	if c == nil {
		return cells
	}
	cells[0] = strconv.FormatUint(c.Connections, 10)
	for i, d := range []*k8s.Directions{c.Packets, c.Bytes} {
		if d != nil {
			cells[1+2*i], cells[2+2*i] = strconv.FormatUint(d.In, 10), strconv.FormatUint(d.Out, 10)
		}
	}
	return cells
}

// rates are connections, and packets and bytes in both directions, per second since before. One is negative
// where there is nothing to compare with, or a counter began again.
func (t *servicesText) rates(s *api.ServiceInfo) [5]float64 {
	rates := [5]float64{-1, -1, -1, -1, -1}
	before, now := t.before[serviceKey(s)], s.Counters
	if t.seconds <= 0 || before == nil || now == nil {
		return rates
	}
	rate := func(i int, before, now uint64) {
		if now >= before {
			rates[i] = float64(now-before) / t.seconds
		}
	}
	rate(0, before.Connections, now.Connections)
	for i, d := range [][2]*k8s.Directions{{before.Packets, now.Packets}, {before.Bytes, now.Bytes}} {
		if d[0] != nil && d[1] != nil {
			rate(1+2*i, d[0].In, d[1].In)
			rate(2+2*i, d[0].Out, d[1].Out)
		}
	}
	return rates
}

// byRate orders by packets per second in both directions, then by connections per second, the highest first.
func (t *servicesText) byRate(a, b api.ServiceInfo) int {
	x, y := t.rates(&a), t.rates(&b)
	return cmp.Or(cmp.Compare(y[1]+y[2], x[1]+x[2]), cmp.Compare(y[0], x[0]))
}

// rateCells are the rates; "-" stands for an unknown one.
func (t *servicesText) rateCells(s *api.ServiceInfo) (cells []string) {
	for _, rate := range t.rates(s) {
		if rate < 0 {
			cells = append(cells, "-")
			continue
		}
		cells = append(cells, strconv.FormatFloat(rate, 'f', 1, 64))
	}
	return cells
}

// writeNotes prints the notes about all Services and about counters, each once.
func writeNotes(out io.Writer, list *api.ServiceList) error {
	w := bufio.NewWriter(out)
	for _, n := range list.Notes {
		fmt.Fprintf(w, "NOTE: %s\n", oneLine(n))
	}
	printed := map[string]bool{"": true}
	for i := range list.Services {
		if n := list.Services[i].CountersNote; !printed[n] {
			printed[n] = true
			fmt.Fprintf(w, "counters: %s\n", oneLine(n))
		}
	}
	return w.Flush()
}
