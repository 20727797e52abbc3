//go:build linux

package semantics

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// errRefused is how a connected UDP socket hears of a port unreachable.
const errRefused = syscall.ECONNREFUSED

// health is what a health check node port says.
type health struct {
	Service             struct{ Namespace, Name string }
	LocalEndpoints      int
	ServiceProxyHealthy bool
}

// get asks a health check node port from a host.
func (c *cluster) get(from *testbed.Host, url string) (*http.Response, health, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: from.DialContext}}
	req, err := http.NewRequestWithContext(wait.Context(c.t), http.MethodGet, url, nil)
	if err != nil {
		return nil, health{}, err
	}
	r, err := client.Do(req)
	if err != nil {
		return nil, health{}, err
	}
	defer r.Body.Close()
	var h health
	return r, h, json.NewDecoder(r.Body).Decode(&h)
}

// Health check node ports tell load balancers whether this node has local endpoints.
func TestRow26HealthCheckNodePort(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		check := func(port int32) change {
			return func(s *v1.Service) { s.Spec.HealthCheckNodePort = port }
		}
		c.serve(service("here", clusterIP(1), everywhere(1), externalLocal, check(32001)), c.here, c.here2, c.there)
		away := c.serve(service("there", clusterIP(2), everywhere(2), externalLocal, check(32002)), c.there)
		ending := service("ending", clusterIP(3), everywhere(3), externalLocal, check(32003))
		c.put(ending)
		c.endpoints(ending, ep{host: c.here, terminating: true}, ep{host: c.there})
		twice := service("twice", clusterIP(4), everywhere(4), externalLocal, check(32004))
		c.put(twice)
		c.endpoints(twice, ep{host: c.here}, ep{host: c.here, port: 8081}, ep{host: c.here2, notReady: true, notServing: true})
		c.apply()
		expect := func(name string, from *testbed.Host, port int, service string, endpoints int) {
			t.Run(name, func(t *testing.T) {
				for _, to := range of(c.Node).on(uint16(port)).addresses() {
					wait.NoError(t, name, func() error {
						r, h, err := c.get(from, "http://"+to.String()+"/any/path")
						if err != nil {
							return err
						}
						status := http.StatusOK
						if endpoints == 0 {
							status = http.StatusServiceUnavailable
						}
						if r.StatusCode != status || h.LocalEndpoints != endpoints || h.Service.Namespace != "default" || h.Service.Name != service ||
							r.Header.Get("X-Load-Balancing-Endpoint-Weight") != strconv.Itoa(endpoints) ||
							r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Content-Type-Options") != "nosniff" ||
							!h.ServiceProxyHealthy {
							return fmt.Errorf("%s: status %d, want %d; %+v; %v", to, r.StatusCode, status, h, r.Header)
						}
						return nil
					})
				}
			})
		}
		expect("local endpoints are counted", c.External, 32001, "here", 2)
		expect("a pod may ask, too", c.pod, 32001, "here", 2)
		expect("none here", c.External, 32002, "there", 0)
		expect("one that terminates is not ready", c.External, 32003, "ending", 0)
		expect("addresses are counted, not ports", c.External, 32004, "twice", 1)
		c.endpoints(away, ready(c.here)...)
		c.apply()
		expect("one comes", c.External, 32002, "there", 1)
		away.Spec.ExternalTrafficPolicy, away.Spec.HealthCheckNodePort = v1.ServiceExternalTrafficPolicyCluster, 0
		c.apply()
		t.Run("policy Cluster has none", func(t *testing.T) {
			for _, to := range of(c.Node).on(32002).addresses() {
				wait.NoError(t, "its port closes", func() error {
					if r, h, err := c.get(c.External, "http://"+to.String()); !errors.Is(err, testbed.ErrRefused) {
						return fmt.Errorf("%s: %v, %+v, %w; want it refused", to, r, h, err)
					}
					return nil
				})
			}
		})
	})
}

// What is in force stays when the proxy ends, however it ends, and a new one goes on from there.
func TestRow32Restart(t *testing.T) {
	onEveryPlane(t, func(t *testing.T, c *cluster) {
		c.elsewhere(clusterIP(1), vip(101))
		web := c.serve(service("web", clusterIP(1), everywhere(1)), c.here)
		gone := c.serve(service("gone", clusterIP(2)), c.here)
		c.serve(service("udp", clusterIP(3), protocol(v1.ProtocolUDP), affinity(3600)), c.there)
		c.apply()
		cluster, node, external, _ := c.frontends(1)
		served := func(when string, h *testbed.Host) {
			t.Run(when, func(t *testing.T) {
				c.expect(t,
					probe{name: "ClusterIP", from: c.pod, to: cluster, want: by(h)},
					probe{name: "ClusterIP from the node", from: c.Node, to: cluster, want: by(h)},
					probe{name: "NodePort", from: c.External, to: node, want: by(h)},
					probe{name: "externalIP", from: c.pod, to: external, want: by(h)},
					probe{name: "UDP", from: c.pod, proto: "udp", to: clusterIP(3).on(80), want: by(c.there)})
			})
		}
		served("at first", c.here)
		held, err := c.pod.Hold(c.ctx, v4(cluster).addresses()[0].String(), testbed.DialOptions{})
		must(t, err)
		must(c.t, c.proxy.Stop(syscall.SIGTERM))
		served("after SIGTERM", c.here)
		c.start()
		served("started again", c.here)
		must(c.t, c.proxy.Stop(syscall.SIGKILL))
		served("after SIGKILL", c.here)
		c.endpoints(web, ready(c.here2)...)
		c.remove(gone)
		c.elsewhere(clusterIP(2))
		c.write()
		served("what changes meanwhile waits", c.here)
		c.start()
		served("and is in force then", c.here2)
		c.expect(t, probe{name: "a Service that was deleted meanwhile is gone", from: c.pod, to: clusterIP(2).on(80), want: by(c.External)})
		if err := held.Check(); err != nil {
			t.Errorf("an open connection: %v", err)
		}
		must(c.t, c.proxy.Stop(syscall.SIGTERM))
		must(t, c.plane.cleanUp(c))
		c.expect(t,
			probe{name: "after cleanup nothing is served", from: c.pod, to: cluster, want: by(c.External)},
			probe{name: "after cleanup nothing is served from the node", from: c.Node, to: cluster, want: by(c.External)},
			probe{name: "after cleanup no externalIP is served", from: c.pod, to: external, want: by(c.External)})
	})
}
