package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
)

// serveServices answers GET /v1/services?namespace=…&name=…&vip=…&port=…&protocol=…&connections=….
func (a *Agent) serveServices(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := ServiceFilter{Namespace: q.Get("namespace"), Name: q.Get("name"), Protocol: q.Get("protocol")}
	f.Connections, _ = strconv.ParseBool(q.Get("connections"))
	if vip := q.Get("vip"); vip != "" {
		var err error
		if f.VIP, err = netip.ParseAddr(vip); err != nil {
			http.Error(w, fmt.Sprintf("vip %q is not an IP address", vip), http.StatusBadRequest)
			return
		}
	}
	if port := q.Get("port"); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			http.Error(w, fmt.Sprintf("port %q is not a port", port), http.StatusBadRequest)
			return
		}
		f.Port = uint16(n)
	}
	list, err := a.services(r.Context(), f)
	reply(w, list, err)
}

// Services asks for Service ports and what they have counted.
func (c *Caller) Services(ctx context.Context, f ServiceFilter) (*ServiceList, error) {
	q := url.Values{
		"namespace": {f.Namespace}, "name": {f.Name},
		"protocol": {f.Protocol}, "port": {strconv.Itoa(int(f.Port))},
		"connections": {strconv.FormatBool(f.Connections)},
	}
	if f.VIP.IsValid() {
		q.Set("vip", f.VIP.String())
	}
	return fetch[ServiceList](ctx, c, http.MethodGet, "/v1/services?"+q.Encode())
}
