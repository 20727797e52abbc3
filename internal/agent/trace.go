package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// serveTrace answers GET /v1/trace?from=…&to=…&protocol=…&in=…&live=…&reply=…, and POST by sending the packet
// as well.
func (a *Agent) serveTrace(w http.ResponseWriter, r *http.Request) {
	ask, ends, err := api.ParseTrace(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ask.Probe = r.Method == http.MethodPost
	result, err := a.trace(r.Context(), ask, &ends)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	var body bytes.Buffer
	if err := result.WriteJSON(&body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body.Bytes()) // who asked may be gone
}

// portsWait is how long a trace waits for what the switch says of its ports.
const portsWait = 400 * time.Millisecond

// trace explains a packet from the model, and compares that with what is installed if the request says so.
func (a *Agent) trace(ctx context.Context, ask trace.Request, ends *trace.Ends) (r *trace.Result, err error) {
	delivered, now := false, planes{}
	if err := a.ask(ctx, func() { delivered, now = a.delivered, a.planes }); err != nil {
		return nil, err
	}
	if !delivered {
		return nil, a.notSynced()
	}

	if ask.Live && now.bridge != nil {
		soon, cancel := context.WithTimeout(ctx, portsWait)
		now.bridge.Asked(soon) // what switchNow has of ports is as new as this, if the switch answers
		cancel()
	}

	pod, err := PodAddresses(ctx, now.switchNow(), a.source, ends.Pod)
	if err != nil {
		return nil, err
	}

	var model k8s.Model
	var q trace.Question
	var unknown error
	var doubts []string
	err = a.ask(ctx, func() {
		var names []string
		if q, names, unknown = ends.Resolve(a.model, pod); unknown != nil {
			return
		}

		now = a.planes
		model.Node, model.Detector, model.ServiceCIDRs = a.model.Node, a.model.Detector, a.model.ServiceCIDRs
		c := a.traceCluster()
		q.In, c.Uplink = a.set.PortNames(now.switchNow(), q.In)
		r = trace.Explain(c, q)
		model.Ports = map[k8s.PortName]*k8s.ServicePort{r.Port: a.model.Ports[r.Port]}
		r.Steps = append(names, r.Steps...)

		if ask.Reply {
			r.ExplainReply(q, &model.Node)
		}
		if away := a.sourceAway(); away != "" {
			r.Steps = append([]string{away}, r.Steps...)
		}

		r.Steps = append(r.Steps, a.listeners(q, r)...)
		if r.Verdict == trace.Deliver {
			states := slices.DeleteFunc(a.tracker.EndpointStates(r.Port), func(e k8s.EndpointState) bool {
				return !slices.Contains(r.Endpoints, e.Addr.String())
			})
			doubts = a.set.deadPorts(now.switchNow(), &model.Node, states)
		}

		doubts = append(doubts, a.set.clientPort(now.switchNow(), &model.Node, q, r)...)
		r.Steps = append(r.Steps, doubts...)
	})

	if err = errors.Join(err, unknown); err != nil {
		return nil, err
	}

	if ask.Live {
		err = a.set.compare(ctx, &now, &model, q, r)
		for _, text := range doubts {
			if err == nil {
				r.Doubt(text)
			}
		}
	}

	if ask.Probe && err == nil {
		err = a.set.probe(ctx, &now, &model, q, r)
	}

	return r, err
}

// clientPort returns what the switch has against the port of a client that is a pod of this node.
func (s *Settings) clientPort(sw *ovsdb.Switch, node *k8s.Node, q trace.Question, r *trace.Result) []string {
	if sw == nil || q.In != "" || !r.PodHere(node) {
		return nil
	}
	if _, ok := sw.PortByIP(q.From.Addr()); !ok {
		return nil
	}
	return s.portProblems(sw, node, q.From.Addr(), "client "+q.From.Addr().String())
}

// listeners names the processes of the node that listen where the packet goes, and do not get it.
func (a *Agent) listeners(q trace.Question, r *trace.Result) (steps []string) {
	for _, c := range a.ports.Conflicts() {
		if c.Service.ServiceName == r.Port.ServiceName && c.Service.Port == r.Port.Port &&
			c.Type == r.Frontend && c.Port == q.To.Port() &&
			c.Service.Protocol == q.Protocol && (!c.Address.IsValid() || c.Address == q.To.Addr()) &&
			!slices.Contains(steps, c.String()) {
			steps = append(steps, c.String())
		}
	}
	return steps
}

// traceCluster returns what packets are explained from. It runs on the loop.
func (a *Agent) traceCluster() trace.Cluster {
	c := trace.Cluster{
		Tracker: a.tracker, Model: a.model, MasqueradeAll: a.set.MasqueradeAll,
		LocalhostNodePorts: a.set.Fallback.LocalhostNodePorts && a.fallback != nil,
		Permissive:         a.mode == mode.Windows,
		Unheard:            a.localhost.Problems(),
	}
	if a.bridge == nil {
		return c
	}
	c.NodeBeside = a.bridge.NodeBeside(a.model)
	if a.fallback != nil {
		return c
	}
	if form := a.bridge.HostTrafficFor(a.model); form == bridge.HostOVS {
		c.OwnUnserved = cmp.Or(a.hostPlaneOff, "it never crosses the bridge (--host-traffic ovs)")
	} else {
		c.HostUnserved = cmp.Or(a.hostPlaneOff,
			"the node's address is not on the bridge (--host-traffic "+string(form)+")")
	}
	return c
}
