package metrics

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/component-base/metrics/prometheus/slis"
)

// check is the one health check of /healthz. It always goes well, as in kube-proxy; /healthz of port 10256
// tells more. /metrics/slis, the service level indicators of Kubernetes' components, counts its results.
const check = "ping"

// healthz answers /healthz. With ?verbose it lists the checks one by one; ?exclude skips some.
func healthz(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	unknown := slices.Compact(slices.Sorted(slices.Values(query["exclude"])))
	at := slices.Index(unknown, check)
	line := "[+]" + check + " ok\n"
	if at >= 0 {
		unknown = slices.Delete(unknown, at, at+1)
		line = "[+]" + check + " excluded: ok\n"
	} else {
		_ = slis.ObserveHealthcheck(r.Context(), check, "healthz", slis.Success) // cannot fail
	}
	if !query.Has("verbose") {
		plainText(w, http.StatusOK, "ok")
		return
	}
	if len(unknown) > 0 {
		quoted := make([]string, len(unknown))
		for i, name := range unknown {
			quoted[i] = fmt.Sprintf("%q", name)
		}
		line += "warn: some health checks cannot be excluded: no matches for " +
			strings.Join(quoted, ",") + "\n"
	}
	plainText(w, http.StatusOK, line+"healthz check passed\n")
}
