//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
)

// explain shows what went through each Service, and what becomes of a packet.
func (s *story) explain(ctx context.Context) error {
	s.begin("What went through each Service so far, and what becomes of a packet")
	made := uint64(s.config.requests + s.config.requests/outsideShare)
	err := s.await(ctx, func() (bool, error) { // the switch's counters are a second behind
		counted, err := s.connections(frontend)
		if err == nil && counted != made {
			err = fmt.Errorf("nkp services counts %d connections to %s, and %d were made", counted, frontend, made)
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	out, _, err := s.nkpSays("services", "--socket", s.socket())
	if err != nil {
		return err
	}
	s.quote(s.config.asGiven+" services --socket "+s.socket(), out)
	s.good("%d connections to %s were made, and %d are counted", made, frontend, made)
	vip, err := s.address(redisSlave, "ClusterIP")
	if err != nil {
		return err
	}
	question := []string{"trace", "--from", s.client.IP4.String(), "--to", vip, "--socket", s.socket()}
	if out, _, err = s.nkpSays(question...); err != nil {
		return err
	}
	s.quote(fmt.Sprintf("%s trace --from %s --to %s --socket %s", s.config.asGiven, s.client.IP4, vip, s.socket()), out)
	return nil
}

// connections returns how many connections nkp has counted to a Service in namespace default.
func (s *story) connections(service string) (n uint64, err error) {
	out, _, err := s.nkpSays("services", "default/"+service, "-o", "json", "--socket", s.socket())
	if err != nil {
		return 0, err
	}
	var r struct {
		Services []struct {
			Counters *struct {
				Connections uint64 `json:"connections"`
			} `json:"counters"`
		} `json:"services"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return 0, fmt.Errorf("nkp services -o json: %w", err)
	}
	for _, sv := range r.Services {
		if sv.Counters != nil {
			n += sv.Counters.Connections
		}
	}
	return n, nil
}
