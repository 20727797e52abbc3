package agent

import (
	"errors"
	"fmt"
	"time"
)

// sourceAway returns since when the API server does not answer, and what that means for an answer of nkp's; "": it answers, or
// the source is none, or there was nothing to answer from yet.
func (a *Agent) sourceAway() string {
	since := a.awaySince()
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s has not answered since %s (%v): this is from what it said last", a.kind, since.UTC().Format(time.RFC3339),
		time.Since(since).Round(time.Second))
}

// notSynced returns the error for a request that arrives before the source has synced.
func (a *Agent) notSynced() error {
	if since := a.awaySince(); !since.IsZero() {
		return fmt.Errorf("the agent's source has not synced yet: %s has not answered all requests since %s", a.kind, since.UTC().Format(time.RFC3339))
	}
	return errors.New("the agent's source has not synced yet")
}

// awaySince returns since when the API server has not answered; the zero Time: it answers, or it is not the source.
func (a *Agent) awaySince() time.Time {
	if server, ok := a.source.(interface{ AwaySince() time.Time }); ok {
		return server.AwaySince()
	}
	return time.Time{}
}
