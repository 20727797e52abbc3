package hnsfake

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// Host returns the fake as the Host that the agent uses: it makes the very calls that are made on Windows, so that they can be
// counted.
func (s *Server) Host() hns.Host { return host{s} }

type host struct{ s *Server }

func (h host) call(fn string, args ...string) (Reply, error) {
	r := h.s.Call(fn, args...)
	return r, hns.ParseError(fn, r.HResult, r.Record)
}

func (h host) Version() (v hns.Version, err error) {
	r, err := h.call("HNSCall", "GET", "/globals/version", "")
	if err != nil {
		return v, err
	}
	var out struct {
		Success bool
		Output  hns.Version
	}
	err = json.Unmarshal([]byte(r.Out), &out)
	return out.Output, err
}

func (h host) NetworkNames() (names []string, err error) {
	list, err := list[struct{ Name string }](h, network, nil)
	for _, n := range list {
		names = append(names, n.Name)
	}
	return names, err
}

func query(filter map[string]string) string {
	q := map[string]any{"SchemaVersion": hns.Schema2}
	if filter != nil {
		f, _ := json.Marshal(filter)
		q["Filter"] = string(f)
	}
	text, _ := json.Marshal(q)
	return string(text)
}

func (h host) ids(k kind, filter map[string]string) (ids []string, err error) {
	r, err := h.call("HcnEnumerate"+string(k)+"s", query(filter))
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal([]byte(r.Out), &ids)
	return ids, err
}

// get opens, queries and closes.
func get[T any](h host, k kind, id string) (*T, error) {
	r, err := h.call("HcnOpen"+string(k), id)
	if err != nil {
		return nil, err
	}
	return finish[T](h, k, r.Handle)
}

// finish queries and closes.
func finish[T any](h host, k kind, handle uint64) (*T, error) {
	text := strconv.FormatUint(handle, 10)
	r, err := h.call("HcnQuery"+string(k)+"Properties", text, query(nil))
	if err != nil {
		return nil, err
	}
	if _, err := h.call("HcnClose"+string(k), text); err != nil {
		return nil, err
	}
	t := new(T)
	return t, json.Unmarshal([]byte(r.Out), t)
}

// list enumerates and gets all; one that vanishes is left out.
func list[T any](h host, k kind, filter map[string]string) (ts []*T, err error) {
	ids, err := h.ids(k, filter)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		t, err := get[T](h, k, id)
		if hns.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// one returns the object that a filter selects.
func one[T any](h host, k kind, filter map[string]string) (*T, error) {
	ts, err := list[T](h, k, filter)
	if err != nil {
		return nil, err
	}
	if len(ts) == 0 {
		return nil, &hns.Error{Call: "HcnEnumerate" + string(k) + "s", Code: hns.CodeElementNotFound, Text: fmt.Sprintf("%v not found", filter)}
	}
	return ts[0], nil
}

func (h host) Network(id string) (*hns.Network, error) {
	text, err := get[json.RawMessage](h, network, id)
	if err != nil {
		return nil, err
	}
	return hns.ParseNetwork(*text)
}

func (h host) NetworkNamed(name string) (*hns.Network, error) {
	text, err := one[json.RawMessage](h, network, map[string]string{"Name": name})
	if err != nil {
		return nil, err
	}
	return hns.ParseNetwork(*text)
}

func (h host) EndpointIDs(net string) ([]string, error) {
	return h.ids(endpoint, map[string]string{"VirtualNetwork": net})
}

func (h host) Endpoint(id string) (*hns.Endpoint, error) {
	return get[hns.Endpoint](h, endpoint, id)
}

func (h host) EndpointNamed(name string) (*hns.Endpoint, error) {
	return one[hns.Endpoint](h, endpoint, map[string]string{"Name": name})
}

func (h host) CreateEndpoint(e *hns.Endpoint) (*hns.Endpoint, error) {
	net, err := h.call("HcnOpenNetwork", e.HostComputeNetwork)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	handle := strconv.FormatUint(net.Handle, 10)
	r, err := h.call("HcnCreateEndpoint", handle, string(body))
	if err != nil {
		return nil, err // hcsshim leaves the network's handle open, too
	}
	made, err := finish[hns.Endpoint](h, endpoint, r.Handle)
	if err != nil {
		return nil, err
	}
	_, err = h.call("HcnCloseNetwork", handle)
	return made, err
}

func (h host) DeleteEndpoint(id string) error {
	_, err := h.call("HcnDeleteEndpoint", id)
	return err
}

func (h host) LoadBalancerIDs() ([]string, error) { return h.ids(loadBalancer, nil) }

func (h host) LoadBalancer(id string) (*hns.LoadBalancer, error) {
	return get[hns.LoadBalancer](h, loadBalancer, id)
}

func (h host) LoadBalancerStates() (map[string]int, error) {
	r, err := h.call("HNSCall", "GET", "/policylists", "")
	if err != nil {
		return nil, err
	}
	var out struct{ Output hns.PolicyLists }
	err = json.Unmarshal([]byte(r.Out), &out)
	return out.Output.States(), err
}

func (h host) CreateLoadBalancer(l *hns.LoadBalancer) (*hns.LoadBalancer, error) {
	body, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	r, err := h.call("HcnCreateLoadBalancer", string(body))
	if err != nil {
		return nil, err
	}
	return finish[hns.LoadBalancer](h, loadBalancer, r.Handle)
}

func (h host) ModifyLoadBalancer(id string, l *hns.LoadBalancer) (*hns.LoadBalancer, error) {
	body, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	r, err := h.call("HcnOpenLoadBalancer", id)
	if err != nil {
		return nil, err
	}
	if _, err := h.call("HcnModifyLoadBalancer", strconv.FormatUint(r.Handle, 10), string(body)); err != nil {
		return nil, err
	}
	return finish[hns.LoadBalancer](h, loadBalancer, r.Handle)
}

func (h host) DeleteLoadBalancer(id string) error {
	_, err := h.call("HcnDeleteLoadBalancer", id)
	return err
}
