//go:build linux

package packets

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// With --service-proxy-name another proxy's Services live in the same ranges: what goes to them passes nkp. Without it nobody
// else does, and what goes to no Service is dropped.
func TestServicesOfAnotherProxyPass(t *testing.T) {
	const theirs, label = "40.0.0.99", "mine"
	c := newCluster(t, testbed.Options{}, "--service-cidr", "40.0.0.0/24")
	must(t, c.Router.AddAddr(c.RouterDevice(), netip.MustParsePrefix(theirs+"/32"))) // what the other proxy leads to
	_, err := c.Router.ServeTCP(80)
	must(t, err)
	web := service("web", "40.0.0.1")
	c.begin(web, slice(web, 8080, at(c.pods[0].IP4)))
	client, served := c.pods[1].Host, func() { c.ask(t, c.pods[1].Host, "tcp", "40.0.0.1:80", c.pods[0].Name) }
	c.unanswered(t, client, "tcp", theirs+":80", served)

	must(t, c.agent.Stop(syscall.SIGTERM))
	web.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": label}
	c.put(web)
	c.flags = append(c.flags, "--service-proxy-name", label)
	c.run()
	c.settle()
	must(t, c.Settle())
	served()
	c.ask(t, client, "tcp", theirs+":80", c.Router.Name)
}
