package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// serveTrace answers GET /v1/trace?from=…&to=…&protocol=…&in=…&live=….
func (a *Agent) serveTrace(w http.ResponseWriter, r *http.Request) {
	q, live, err := traceQuestion(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result, err := a.trace(r.Context(), q, live)
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

func traceQuestion(v url.Values) (q trace.Question, live bool, err error) {
	if q.From, err = trace.ParseSource(v.Get("from")); err != nil {
		return q, false, fmt.Errorf("from: %w", err)
	}
	if q.To, err = trace.ParseDestination(v.Get("to")); err != nil {
		return q, false, fmt.Errorf("to: %w", err)
	}
	if q.Protocol, err = trace.ParseProtocol(v.Get("protocol")); err != nil {
		return q, false, fmt.Errorf("protocol: %w", err)
	}
	q.In = v.Get("in")
	live, _ = strconv.ParseBool(v.Get("live"))
	return q, live, q.Validate()
}

// trace explains a packet from the model, and compares that with what is installed if live is set.
func (a *Agent) trace(ctx context.Context, q trace.Question, live bool) (r *trace.Result, err error) {
	handed, now := false, planes{}
	var model k8s.Model
	err = a.ask(ctx, func() {
		if handed, now = a.delivered, a.planes; !handed {
			return
		}
		model.Node, model.Detector = a.model.Node, a.model.Detector
		c := a.traceCluster()
		q.In, c.Uplink = a.set.PortNames(now.switchNow(), q.In)
		r = trace.Explain(c, q)
		if away := a.sourceAway(); away != "" {
			r.Steps = append([]string{away}, r.Steps...)
		}
		r.Steps = append(r.Steps, a.listeners(q, r)...)
		if r.Verdict == trace.Deliver {
			states := slices.DeleteFunc(a.tracker.EndpointStates(r.Port), func(e k8s.EndpointState) bool { return !slices.Contains(r.Endpoints, e.Addr.String()) })
			r.Steps = append(r.Steps, a.set.deadPorts(now.switchNow(), &model.Node, states)...)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case !handed:
		return nil, a.notSynced()
	case live:
		err = a.set.compare(ctx, &now, &model, q, r)
	}
	return r, err
}

// listeners names the processes of the node that listen where the packet goes, and do not get it.
func (a *Agent) listeners(q trace.Question, r *trace.Result) (steps []string) {
	for _, c := range a.ports.Conflicts() {
		if c.Service.ServiceName == r.Port.ServiceName && c.Service.Port == r.Port.Port && c.Type == r.Frontend && c.Port == q.To.Port() &&
			c.Service.Protocol == q.Protocol && (!c.Address.IsValid() || c.Address == q.To.Addr()) && !slices.Contains(steps, c.String()) {
			steps = append(steps, c.String())
		}
	}
	return steps
}

// traceCluster returns what packets are explained from. It runs on the loop.
func (a *Agent) traceCluster() trace.Cluster {
	c := trace.Cluster{
		Tracker: a.tracker, Model: a.model, MasqueradeAll: a.set.MasqueradeAll,
		LocalhostNodePorts: a.set.IPTables.LocalhostNodePorts && a.iptables != nil,
	}
	if a.bridge == nil {
		return c
	}
	c.NodeBeside = a.bridge.NodeBeside(a.model)
	if a.iptables != nil {
		return c
	}
	if form := a.bridge.HostTrafficFor(a.model); form == bridge.HostOVS {
		c.OwnGap = cmp.Or(a.hostPlaneOff, "it never crosses the bridge (--host-traffic ovs)")
	} else {
		c.HostGap = cmp.Or(a.hostPlaneOff, "the node's address is not on the bridge (--host-traffic "+string(form)+")")
	}
	return c
}

// Trace asks the agent to explain a packet.
func (c *Caller) Trace(ctx context.Context, q trace.Question, live bool) (*trace.Result, error) {
	from := q.From.String()
	if q.From.Port() == 0 {
		from = q.From.Addr().String()
	}
	v := url.Values{"from": {from}, "to": {q.To.String()}, "protocol": {string(q.Protocol)}, "in": {q.In}, "live": {strconv.FormatBool(live)}}
	body, err := c.get(ctx, "/v1/trace?"+v.Encode())
	if err != nil {
		return nil, err
	}
	var r trace.Result
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("agent on %s: %w", c.path, err)
	}
	return &r, nil
}
