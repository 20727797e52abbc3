package agent

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// maxFlows bounds the objects of one answer.
const maxFlows = 10_000

// serveFlows answers GET /v1/flows?namespace=…&name=…&most=…, without a name for all that nkp has installed.
func (a *Agent) serveFlows(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	most, err := strconv.Atoi(q.Get("most"))
	if err != nil || most <= 0 || most > maxFlows {
		most = maxFlows
	}
	of := api.ServiceFilter{Namespace: q.Get("namespace"), Name: q.Get("name")}
	list, err := a.flows(r.Context(), of, most)
	reply(w, list, err)
}

// flows lists what is installed of a Service, Service port by Service port.
func (a *Agent) flows(ctx context.Context, f api.ServiceFilter, most int) (*api.FlowList, error) {
	names, delivered, active := []k8s.PortName{{}}, false, planes{}
	err := a.ask(ctx, func() {
		if delivered, active = a.delivered, a.planes; f.Name != "" {
			names = selected(&f, a.model, a.tracker)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case !delivered:
		return nil, a.notSynced()
	}

	slices.SortFunc(names, k8s.PortName.Compare)
	list := &api.FlowList{Node: a.set.NodeName, Mode: string(a.mode),
		ServicePorts: len(names), Objects: []dataplane.Object{}}

	for _, pl := range active.all {
		for _, n := range names {
			to := dataplane.Listing{Most: most - len(list.Objects)}
			if err := pl.List(ctx, n, &to); err != nil {
				return nil, err
			}
			for _, o := range to.Objects {
				if o.Plane = pl.label; f.Name != "" {
					o.Service = n.String() + " " + string(n.Protocol) + " " + n.Family.String()
				}
				list.Objects = append(list.Objects, o)
			}
			list.More += to.More
		}
	}

	return list, nil
}
