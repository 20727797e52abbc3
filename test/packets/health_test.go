//go:build linux

package packets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// get asks a host's HTTP server from another host.
func (c *cluster) get(from *testbed.Host, url string) (status int, body string, err error) {
	client := http.Client{Timeout: wait.Limit, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return from.DialTCP(ctx, addr, testbed.DialOptions{})
		}}}
	res, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return res.StatusCode, string(data), err
}

// /healthz says whether load balancers should send traffic to this node, /livez whether nkp works.
func TestHealthz(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	c.put()
	c.run()
	c.settle()
	const url = "http://127.0.0.1:10256"
	expect := func(path string, want int) {
		t.Helper()
		c.eventually(path, func() error {
			status, body, err := c.get(c.Node, url+path)
			var answer struct{ NodeEligible, Healthy *bool }
			if err = errors.Join(err, json.Unmarshal([]byte(body), &answer)); err != nil || status != want {
				return fmt.Errorf("%d %s %w; want %d", status, body, err, want)
			}
			return nil
		})
	}
	expect("/healthz", 200)
	expect("/livez", 200)
	c.put(&v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec:   v1.NodeSpec{Taints: []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: v1.TaintEffectNoSchedule}}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: testbed.NodeIP4.String()}}},
	})
	delete(c.objects, "node") // the harness's own
	c.write()
	expect("/healthz", 503)
	expect("/livez", 200)
}
