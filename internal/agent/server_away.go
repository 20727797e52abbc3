package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// sourceAway returns since when the API server does not answer, and what that means for an answer of nkp's;
// "": it answers, or the source is none, or there was nothing to answer from yet.
func (a *Agent) sourceAway() string {
	since := a.awaySince()
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s has not answered since %s (%v): this is from what it said last",
		a.kind, since.UTC().Format(time.RFC3339), time.Since(since).Round(time.Second))
}

// notSynced returns the error for a request that arrives before the source has synced.
func (a *Agent) notSynced() error {
	if since := a.awaySince(); !since.IsZero() {
		return fmt.Errorf("the agent's source has not synced yet: %s has not answered all requests since %s",
			a.kind, since.UTC().Format(time.RFC3339))
	}
	return errors.New("the agent's source has not synced yet")
}

// awaySince returns since when the API server has not answered; the zero Time: it answers, or it is not the
// source.
func (a *Agent) awaySince() time.Time {
	if server, ok := a.source.(interface{ AwaySince() time.Time }); ok {
		return server.AwaySince()
	}
	return time.Time{}
}

// servedServer returns a warning if the address at which nkp reaches the API server is a Service's; "": it is
// not. A node on which nothing is programmed yet cannot reach it.
func (a *Agent) servedServer() string {
	server, ok := a.source.(interface{ URL() string })
	if !ok {
		return ""
	}

	u, err := url.Parse(server.URL())
	if err != nil {
		return ""
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return ""
	}

	for _, sp := range a.model.Ports {
		for _, f := range sp.Frontends {
			if f.Address == ip && f.Type == k8s.ClusterIP {
				return fmt.Sprintf("nkp reaches the API server at %s, the ClusterIP of Service %s, "+
					"which nkp itself serves: after a restart of the node it gets no Services, "+
					"unless another program serves that address; name the API server's own "+
					"address (--master; in a pod KUBERNETES_SERVICE_HOST and _PORT, see deploy/README.md)",
					ip, sp.Name.ServiceName)
			}
		}
	}
	return ""
}
