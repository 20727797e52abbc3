package agent

import (
	"context"
	"errors"
	"net/http"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/live"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
)

// serveSample answers GET /v1/trace/sample?from=…&to=…&protocol=…&in=…, with addresses only.
func (a *Agent) serveSample(w http.ResponseWriter, r *http.Request) {
	_, ends, err := api.ParseTrace(r.URL.Query())
	if err == nil && !ends.Addressed() {
		err = errors.New("from and to must be addresses")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sample, err := a.sample(r.Context(), ends.Question)
	reply(w, sample, err)
}

// sample looks once at the connections that q is about, in the data plane that serves its packet.
func (a *Agent) sample(ctx context.Context, q trace.Question) (*trace.Sample, error) {
	delivered, now := false, planes{}
	var model k8s.Model
	var r *trace.Result
	err := a.ask(ctx, func() {
		if delivered, now = a.delivered, a.planes; delivered {
			model.Node, model.Detector = a.model.Node, a.model.Detector
			c := a.traceCluster()
			q.In, c.Uplink = a.set.PortNames(now.switchNow(), q.In)
			r = trace.Explain(c, q)
		}
	})

	db := now.switchNow()
	switch {
	case err != nil:
		return nil, err
	case !delivered:
		return nil, a.notSynced()
	case db != nil && !db.Exists && (now.fallback == nil || r.Source != k8s.ThisNode):
		return nil, errors.New(bridge.Gone(db))
	case db != nil && (now.fallback == nil ||
		OnBridge(now.fallback.Detail().Scope, now.bridge.NodeBeside(&model), db, &model, q, r)):
		if err := now.bridge.Answers(ctx); err != nil {
			return nil, err
		}
		sw, err := a.set.bridgeOf(ctx, &now, db)
		if err != nil {
			return nil, err
		}
		return sw.Sample(ctx, q, r)
	case now.fallback != nil:
		return live.KernelSample(kernelConnections(ctx, q), q)
	}

	return nil, ErrNoLive
}
