package agent

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
)

// How long a question waits for the data planes to have in force what came before it, and how often it looks.
const (
	inForceWait  = 3 * time.Second
	inForcePause = 10 * time.Millisecond
)

// inForce waits until all data planes of the node have in force what the agent has of a Service when it is
// asked, for at most inForceWait. Later changes are not waited for, so that a stream of them cannot delay the
// answer, nor connections to removed endpoints of others.
func (a *Agent) inForce(ctx context.Context, name k8s.ServiceName) (*api.InForce, error) {
	ctx, cancel := context.WithTimeout(ctx, inForceWait)
	defer cancel()

	var s api.InForce
	known, delivered, closing, active := false, false, false, planes{}
	asked := time.Now()
	err := a.ask(ctx, func() {
		asked = time.Now()
		delivered, active = a.delivered, a.planes
		s.Versions, known = a.tracker.VersionsOf(name)
		closing = a.tracker.Closes(name)
		s.Why, s.Final = a.tracker.Unserved(name)
	})
	switch {
	case err != nil:
		return nil, err
	case !delivered:
		return nil, a.notSynced()
	case s.Service == "" && strings.HasPrefix(a.kind, "manifests "):
		s.Why, s.Final = "follows "+a.kind+", whose objects have no versions to compare", true
	case !known:
		s.Why = "the agent does not have the Service"
	}
	if s.Why != "" {
		return &s, nil
	}

	for s.Why = a.behind(ctx, &active, asked, closing); s.Why != ""; {
		select {
		case <-ctx.Done():
			return &s, nil
		case <-time.After(inForcePause):
		}
		if why := a.behind(ctx, &active, asked, closing); ctx.Err() == nil {
			s.Why = why
		}
	}
	if active.bridge != nil {
		s.Why = active.bridge.Uncached(ctx)
	}
	if s.Why == "" {
		s.Why, err = active.refusal(ctx, name)
	}
	return &s, err
}

// behind is planes.behind, and counts the listeners at [::1] as well.
func (a *Agent) behind(ctx context.Context, p *planes, by time.Time, closing bool) string {
	if a.localhost.Opening() {
		return "nkp is about to listen for NodePorts at [::1]"
	}
	return p.behind(ctx, by, closing)
}

// behind returns why changes that were handed over by a time may not be in force (dataplane.Plane.Behind);
// "": they are.
func (p *planes) behind(ctx context.Context, by time.Time, closing bool) string {
	for _, pl := range p.all {
		if why := pl.Behind(ctx, by, closing); why != "" {
			return why
		}
	}
	return ""
}

// refusal returns why a data plane refuses a port of a Service, or what all Services share; "": none does.
func (p *planes) refusal(ctx context.Context, name k8s.ServiceName) (string, error) {
	for _, pl := range p.all {
		s, err := pl.Status(ctx)
		switch {
		case err != nil:
			return "", err
		case s.Busy:
			return "refusals by " + pl.name + " are unknown now: " + s.Why, nil
		}
		for _, r := range s.Refusals {
			if r.Port.ServiceName == name || r.Port == (k8s.PortName{}) {
				return pl.name + " refuses it: " + reasonOf(r), nil
			}
		}
	}
	return "", nil
}

// serveInForce answers GET /v1/inforce?namespace=…&name=….
func (a *Agent) serveInForce(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s, err := a.inForce(r.Context(), k8s.ServiceName{Namespace: q.Get("namespace"), Name: q.Get("name")})
	reply(w, s, err)
}
