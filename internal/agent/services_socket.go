package agent

import (
	"context"
	"encoding/json"
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
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(list)
}

// Services asks for Service ports and what they have counted.
func (c *Caller) Services(ctx context.Context, f ServiceFilter) (*ServiceList, error) {
	q := url.Values{}
	if f.Namespace != "" {
		q.Set("namespace", f.Namespace)
	}
	if f.Name != "" {
		q.Set("name", f.Name)
	}
	if f.VIP.IsValid() {
		q.Set("vip", f.VIP.String())
	}
	if f.Port != 0 {
		q.Set("port", strconv.Itoa(int(f.Port)))
	}
	if f.Protocol != "" {
		q.Set("protocol", f.Protocol)
	}
	if f.Connections {
		q.Set("connections", "true")
	}
	path := "/v1/services"
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	body, err := c.get(ctx, path)
	if err != nil {
		return nil, err
	}
	var list ServiceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("agent on %s: %w", c.path, err)
	}
	return &list, nil
}
