package agent

import (
	"fmt"
	"net/http"

	"github.com/nkp-proxy/nkp/internal/api"
)

// serveLogLevel answers POST /v1/log-level?level=…. The level holds until nkp restarts.
func (a *Agent) serveLogLevel(w http.ResponseWriter, r *http.Request) {
	var c api.LogLevelChange
	if err := c.Now.UnmarshalText([]byte(r.URL.Query().Get("level"))); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if a.logLevel == nil {
		http.Error(w, "the log level of this agent cannot be changed", http.StatusServiceUnavailable)
		return
	}
	a.leveling.Lock()
	defer a.leveling.Unlock()
	c.Before = a.logLevel.Level()
	a.logLevel.Set(c.Now)
	a.log.Warn(fmt.Sprintf("the log level is now %s, until nkp restarts; it was %s (nkp log-level)",
		c.Now, c.Before))
	reply(w, &c, nil)
}
