package health

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
)

// report is the body of /healthz and /livez, in the order in which kube-proxy writes it. kube-proxy has no
// Stuck.
type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"` // in /healthz only
	Healthy      bool                    `json:"healthy"`                // without the node
	Status       map[string]familyStatus `json:"status,omitempty"`       // by family: IPv4, IPv6
	Stuck        []dataplane.State       `json:"stuck,omitempty"`        // loops without progress
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// handler serves /healthz and /livez, and nothing else.
func (p *Proxy) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := p.NodeEligible()
		p.answer(w, "/healthz", &eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { p.answer(w, "/livez", nil) })
	return mux
}

// answer writes one report; nodeEligible is nil where the node does not matter.
func (p *Proxy) answer(w http.ResponseWriter, path string, nodeEligible *bool) {
	now := p.opts.Clock()
	r := report{CurrentTime: now, NodeEligible: nodeEligible}
	r.Status, r.Healthy = p.state(now)
	r.Stuck = p.opts.Stuck()
	r.Healthy = r.Healthy && len(r.Stuck) == 0 && (nodeEligible == nil || !p.isBypassed())

	code := http.StatusOK
	if !r.Healthy || nodeEligible != nil && !*nodeEligible {
		code = http.StatusServiceUnavailable
		for _, s := range r.Status {
			if s.LastUpdated.After(r.LastUpdated) {
				r.LastUpdated = s.LastUpdated
			}
		}
	} else {
		r.LastUpdated = now // probes that look for a recent time are older than the status code
	}

	body, err := json.Marshal(r)
	if err != nil {
		panic(err) // times after the year 9999
	}

	jsonHeader(w)
	w.WriteHeader(code)
	w.Write(body)

	if p.opts.OnResponse != nil {
		p.opts.OnResponse(path, code)
	}
}
