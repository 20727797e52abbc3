package health

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/nkp-proxy/nkp/k8s"
)

// answer serves one Service's health check in one family, at every path and for every method.
type answer struct {
	services *Services
	name     k8s.ServiceName
	family   k8s.Family
}

// answerBody is kube-proxy's, white space included, because a load balancer may match it against a pattern.
const answerBody = `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %v
}`

// ServeHTTP is part of http.Handler.
func (a answer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	local, ok := a.services.check(a.name, a.family)
	if !ok {
		panic(http.ErrAbortHandler) // gone; the port is about to be closed
	}
	healthy := a.services.opts.Healthy()
	code := http.StatusOK
	if local == 0 || !healthy {
		code = http.StatusServiceUnavailable
	}
	jsonHeader(w)
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
	w.WriteHeader(code)
	fmt.Fprintf(w, answerBody, a.name.Namespace, a.name.Name, local, healthy)
}

func jsonHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}
