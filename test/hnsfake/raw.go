package hnsfake

import (
	"encoding/json"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// Raw returns the fake as an HNS whose objects are JSON.
func (s *Server) Raw() hns.Raw { return raw{host{s}} }

type raw struct{ host }

func (r raw) IDs(k hns.Kind) ([]string, error) { return r.ids(kind(k), nil) }

func (r raw) Query(k hns.Kind, id string) (json.RawMessage, error) {
	return object(get[json.RawMessage](r.host, kind(k), id))
}

func (r raw) Create(k hns.Kind, network string, body []byte) (json.RawMessage, error) {
	args := []string{string(body)}
	if k == hns.KindEndpoint {
		n, err := r.call("HcnOpenNetwork", network)
		if err != nil {
			return nil, err
		}
		defer func() { _, _ = r.call("HcnCloseNetwork", formatHandle(n.Handle)) }() // cannot fail
		args = []string{formatHandle(n.Handle), string(body)}
	}
	made, err := r.call("HcnCreate"+string(k), args...)
	if err != nil {
		return nil, err
	}
	return object(finish[json.RawMessage](r.host, kind(k), made.Handle))
}

func (r raw) Modify(k hns.Kind, id string, body []byte) (json.RawMessage, error) {
	o, err := r.call("HcnOpen"+string(k), id)
	if err != nil {
		return nil, err
	}
	if _, err := r.call("HcnModify"+string(k), formatHandle(o.Handle), string(body)); err != nil {
		return nil, err
	}
	return object(finish[json.RawMessage](r.host, kind(k), o.Handle))
}

func (r raw) Delete(k hns.Kind, id string) error {
	_, err := r.call("HcnDelete"+string(k), id)
	return err
}

func object(o *json.RawMessage, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return *o, nil
}
