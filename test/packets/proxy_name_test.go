//go:build linux

package packets

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// With --service-proxy-name another proxy's Services live in the same ranges: what goes to them passes nkp. Without it nobody
// else does, and what goes to no Service is dropped.
func TestServicesOfAnotherProxyPass(t *testing.T) {
	t.Parallel()
	const theirs = "40.0.0.99"
	for _, x := range []struct {
		name  string
		label string
		want  error
	}{
		{"alone", "", testbed.ErrTimeout},
		{"beside another", "mine", nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, testbed.Options{}, "--service-cidr", "40.0.0.0/24", "--service-proxy-name", x.label)
			c.servePods(t)
			must(t, c.Router.AddAddr(c.RouterDevice(), netip.MustParsePrefix(theirs+"/32"))) // what the other proxy leads to
			_, err := c.Router.ServeTCP(80)
			must(t, err)
			web := service("web", "40.0.0.1", func(s *v1.Service) {
				if x.label != "" {
					s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": x.label}
				}
			})
			c.put(web, slice(web, 8080, at(c.pods[0].IP4)))
			c.run()
			c.settle()
			c.ask(t, c.pods[1].Host, "tcp", "40.0.0.1:80", c.pods[0].Name)
			ctx, cancel := context.WithTimeout(c.ctx, testbed.Patient(time.Second))
			defer cancel()
			a, err := c.pods[1].Ask(ctx, "tcp", theirs+":80")
			if !errors.Is(err, x.want) || err == nil && a.Pod != c.Router.Name {
				t.Errorf("an address that no Service of nkp's has: answered by %q, %v; want %v", a.Pod, err, x.want)
			}
		})
	}
}
