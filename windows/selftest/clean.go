package selftest

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// removeLeftovers deletes what a self-test that was killed has left.
func (t *test) removeLeftovers() error {
	before, err := t.raw.IDs(hns.KindNetwork)
	if err != nil {
		return fmt.Errorf("cannot list the networks of HNS: %w", err)
	}
	if err := t.clean(); err != nil {
		return fmt.Errorf("an earlier self-test was killed, and what it left cannot be deleted: %w", err)
	}
	if after, err := t.raw.IDs(hns.KindNetwork); err == nil && len(after) < len(before) {
		t.note("an earlier self-test was killed: what it left was deleted first")
	}
	return nil
}

// clean deletes the self-test's networks and all that belongs to them: load balancers first, because they
// refer to endpoints. It finds them in HNS, so that it also deletes objects whose creation was not answered.
func (t *test) clean() error {
	networks, err := objects(t.raw, hns.KindNetwork)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range networks {
		if ours(n) {
			errs = append(errs, t.cleanNetwork(hns.IDOf(n)))
		}
	}
	return errors.Join(errs...)
}

func (t *test) cleanNetwork(network string) error {
	endpoints, err := objects(t.raw, hns.KindEndpoint)
	if err != nil {
		return err
	}
	var ids []string
	mine := map[string]bool{}
	for _, o := range endpoints {
		var e struct{ HostComputeNetwork string }
		if json.Unmarshal(o, &e) == nil && hns.SameID(e.HostComputeNetwork, network) {
			ids = append(ids, hns.IDOf(o))
			mine[hns.IDOf(o)] = true
		}
	}

	loadBalancers, err := objects(t.raw, hns.KindLoadBalancer)
	if err != nil {
		return err
	}

	var errs []error
	for _, o := range loadBalancers {
		if sendsOnlyTo(o, mine) {
			errs = append(errs, t.delete(hns.KindLoadBalancer, hns.IDOf(o)))
		}
	}
	for _, id := range ids {
		errs = append(errs, t.delete(hns.KindEndpoint, id))
	}
	errs = append(errs, t.delete(hns.KindNetwork, network))
	return errors.Join(errs...)
}

// sendsOnlyTo reports whether a load balancer has endpoints, and all are among those given.
func sendsOnlyTo(loadBalancer json.RawMessage, endpoints map[string]bool) bool {
	var l hns.LoadBalancer
	if json.Unmarshal(loadBalancer, &l) != nil {
		return false
	}
	for _, id := range l.HostComputeEndpoints {
		if !endpoints[hns.CanonicalID(id)] {
			return false
		}
	}
	return len(l.HostComputeEndpoints) > 0
}

// delete deletes an object, and tries again once: HNS may still be at work on another.
func (t *test) delete(k hns.Kind, id string) error {
	err := t.raw.Delete(k, id)
	if err != nil && !hns.IsNotFound(err) {
		err = t.raw.Delete(k, id)
	}
	if err == nil || hns.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s %s: %w", k, id, err)
}
