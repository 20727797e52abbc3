package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/nkp-proxy/nkp/windows/hns"
)

// Cleanup removes everything that the state file says is nkp's, load balancers first, and then the file
// itself. What cannot be removed stays in the file, so that Cleanup can be called again. network names the
// network of the endpoints that an agent was about to create when it died; "": they stay.
func Cleanup(ctx context.Context, host hns.Host, store StateFile, network string) (removed int, err error) {
	owned, err := store.Load()
	if err != nil {
		return 0, fmt.Errorf("%w: without it nkp cannot distinguish its objects from foreign ones", err)
	}
	if owned.pending() {
		if err := identify(host, owned, network); err != nil {
			return 0, err
		}
	}

	var errs []error
	for _, kind := range []struct {
		name string
		ids  map[string]bool
		del  func(string) error
	}{
		{"load balancer", owned.LoadBalancers, host.DeleteLoadBalancer},
		{"endpoint", owned.Endpoints, host.DeleteEndpoint},
	} {
		for _, id := range list(kind.ids) {
			if err := ctx.Err(); err != nil {
				return removed, errors.Join(append(errs, err, store.Save(owned))...)
			}
			err := kind.del(id)
			if err != nil && !hns.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("%s %s: %w", kind.name, id, err))
				continue
			}
			if err == nil {
				removed++
			}
			delete(kind.ids, id)
		}
	}

	if len(errs) > 0 {
		return removed, errors.Join(append(errs, store.Save(owned))...)
	}
	return removed, store.Remove()
}

// identify finds objects that an agent created but could not record, because it died before.
func identify(host hns.Host, owned *Ownership, network string) error {
	var have observed
	var err error
	if have.loadBalancers, err = loadBalancers(host, nil); err != nil {
		return err
	}
	if network != "" {
		n, err := host.NetworkNamed(network)
		if err == nil {
			have.endpoints, err = endpoints(host, n.ID, nil)
		}
		if err != nil && !hns.IsNotFound(err) { // endpoints go with their network
			return fmt.Errorf("cannot read network %q: %w", network, err)
		}
	}
	owned.identify(&have)
	return nil
}
