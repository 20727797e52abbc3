package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// nodesService is a Service port as some nodes serve it.
type nodesService struct {
	Nodes []string `json:"nodes"`
	api.ServiceInfo
	differs bool // other nodes serve it otherwise
}

// clusterServices is what `kubectl nkp services -o json` prints.
type clusterServices struct {
	Services []*nodesService   `json:"services"`
	Notes    []string          `json:"notes"`
	Failures map[string]string `json:"failures"` // by node
}

// nodes prints what the nodes of a cluster serve. A Service that is named must be served by one of them.
func (v *servicesView) nodes(ctx context.Context, peers []peer, out, errOut io.Writer) (err error) {
	if v.filter.Namespace == "" && !v.all {
		v.filter.Namespace = v.on.nodes.namespace
	}
	ask := func(ctx context.Context, c *api.Caller) (*api.ServiceList, error) {
		return c.Services(ctx, v.filter)
	}
	answers := askAll(ctx, peers, v.on.timeout(), ask)
	list := mergeServices(answers)
	if v.output.data() {
		err = v.output.write(out, list)
	} else {
		err = list.write(out, v.output.format == "wide", len(peers))
	}
	if err != nil {
		return err
	}
	err = complain(errOut, !v.output.data(), answers)
	if err == nil && v.filter.Name != "" && len(list.Services) == 0 {
		return fmt.Errorf("no node serves a Service %s/%s", cmp.Or(v.filter.Namespace, "*"), v.filter.Name)
	}
	return err
}

// mergeServices groups the nodes that serve a Service port in the same way, and adds their counters.
func mergeServices(answers []answer[api.ServiceList]) clusterServices {
	list := clusterServices{Services: []*nodesService{}, Notes: []string{}, Failures: map[string]string{}}
	groups := map[string]*nodesService{} // by serviceKey and what is served
	first := map[string]*nodesService{}  // by serviceKey

	for _, a := range answers {
		if a.Answer == nil {
			list.Failures[a.Node] = a.Error
			continue
		}
		for _, note := range a.Answer.Notes {
			list.Notes = append(list.Notes, a.Node+": "+note)
		}

		for i := range a.Answer.Services {
			s := &a.Answer.Services[i]
			for j := range s.Endpoints {
				// An agent knows only its own node's zone where slices have none. Node says for all nodes
				// what is local.
				s.Endpoints[j].Local, s.Endpoints[j].Zone = false, ""
			}

			key := serviceKey(s)
			more := []int{s.MoreFrontends, s.MoreEndpoints}
			served, _ := json.Marshal([]any{s.Frontends, s.Endpoints, more, s.Problems}) // plain data
			group := key + string(served)

			if g := groups[group]; g != nil {
				g.Nodes = append(g.Nodes, a.Node)
				g.Counters = addCounters(g.Counters, s.Counters)
				g.CountersNote = cmp.Or(g.CountersNote, s.CountersNote)
				continue
			}

			g := &nodesService{Nodes: []string{a.Node}, ServiceInfo: *s}
			groups[group] = g
			list.Services = append(list.Services, g)
			if first[key] == nil {
				first[key] = g
			} else {
				first[key].differs, g.differs = true, true
			}
		}
	}

	slices.SortStableFunc(list.Services, func(a, b *nodesService) int {
		return cmp.Or(strings.Compare(serviceKey(&a.ServiceInfo), serviceKey(&b.ServiceInfo)),
			len(b.Nodes)-len(a.Nodes))
	})

	return list
}

// addCounters returns the sum. What one of them does not count is not counted.
func addCounters(a, b *k8s.Counters) *k8s.Counters {
	if a == nil || b == nil {
		return nil
	}
	sum := &k8s.Counters{Connections: a.Connections + b.Connections, Dropped: map[k8s.DropReason]uint64{}}
	add := func(a, b *k8s.Directions) *k8s.Directions {
		if a == nil || b == nil {
			return nil
		}
		return &k8s.Directions{In: a.In + b.In, Out: a.Out + b.Out}
	}
	sum.Packets, sum.Bytes = add(a.Packets, b.Packets), add(a.Bytes, b.Bytes)
	for _, c := range []*k8s.Counters{a, b} {
		for why, n := range c.Dropped {
			sum.Dropped[why] += n
		}
	}
	return sum
}

// write prints the list for people. asked is how many nodes were asked.
func (l *clusterServices) write(out io.Writer, wide bool, asked int) error {
	t := &servicesText{wide: wide}
	plain := &api.ServiceList{Notes: l.Notes}
	for _, s := range l.Services {
		nodes := strconv.Itoa(len(s.Nodes))
		if s.differs || len(s.Nodes)+len(l.Failures) < asked {
			nodes = dataplane.Some(3, s.Nodes)
		}
		t.nodes = append(t.nodes, nodes)
		plain.Services = append(plain.Services, s.ServiceInfo)
	}
	if len(l.Services) == 0 {
		return writeNotes(out, plain)
	}
	return t.write(out, plain, 0)
}
