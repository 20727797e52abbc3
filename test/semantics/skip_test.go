//go:build linux

package semantics

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// cacheName is the record in which nodeCache says who it is.
const cacheName = "node-cache"

// nodeCache stands for NodeLocal DNSCache: a process of the node that answers DNS at the cluster IPs of another Service. The
// node has them on a device of its own: a pair, because not every kernel has dummy devices.
type nodeCache struct {
	node    *testbed.Host
	at      []netip.AddrPort
	sockets []net.PacketConn
	asked   atomic.Int64
}

// addNodeCache starts a nodeCache and gives its addresses to the node.
func (c *cluster) addNodeCache(at dual) *nodeCache {
	c.t.Helper()
	c.addExtraDevice()
	c.addNodeAddress(extraDevice, at)
	cache := &nodeCache{node: c.Node, at: at.on(53).addresses()}
	must(c.t, cache.listen())
	c.t.Cleanup(cache.end)
	return cache
}

func (n *nodeCache) listen() error {
	for _, at := range n.at {
		s, err := n.node.ListenPacket(at.String())
		if err != nil {
			return err
		}
		n.sockets = append(n.sockets, s)
		go n.answer(s) // ended by end
	}
	return nil
}

func (n *nodeCache) end() {
	for _, s := range n.sockets {
		_ = s.Close()
	}
	n.sockets = nil
}

// answer answers each query with a TXT record of cacheName (RFC 1035 §4.1).
func (n *nodeCache) answer(s net.PacketConn) {
	query := make([]byte, 512)
	for {
		size, from, err := s.ReadFrom(query)
		if err != nil {
			return
		}
		n.asked.Add(1)
		if size < 12 {
			continue
		}
		answer := append([]byte{}, query[:size]...)
		answer[2], answer[3], answer[7] = 0x84, 0, 1 // an authoritative answer without error, of one record
		answer = append(answer, 0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, byte(len(cacheName)+1), byte(len(cacheName)))
		_, _ = s.WriteTo(append(answer, cacheName...), from)
	}
}

// resolve asks a DNS server as a resolver with the options timeout:1 and attempts:5 does. A server that restarts refuses queries
// for a moment.
func resolve(ctx context.Context, from *testbed.Host, server netip.AddrPort, id uint16) (who string, err error) {
	query := binary.BigEndian.AppendUint16(nil, id)
	query = append(query, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 'w', 'h', 'o', 0, 0, 16, 0, 1)
	s, err := from.DialUDP(ctx, server.String(), testbed.DialOptions{})
	if err != nil {
		return "", err
	}
	defer s.Close()
	answer, n := make([]byte, 512), 0
	for range 5 {
		if _, err = s.Write(query); err == nil {
			_ = s.SetReadDeadline(time.Now().Add(time.Second))
			n, err = s.Read(answer)
		}
		if err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	switch record := len(query) + 13; {
	case err != nil:
		return "", err
	case n < record || binary.BigEndian.Uint16(answer) != id:
		return "", fmt.Errorf("no answer to the query: %q", answer[:n])
	default:
		return string(answer[record:n]), nil
	}
}

// A Service that --skip-services names belongs to another program of the node: NodeLocal DNSCache answers at kube-dns' cluster
// IPs, and no query fails while it restarts. Its other ports there are not refused, to the node neither.
func TestRow18SkippedService(t *testing.T) {
	const dns, unknown, ranges = 10, 50, "40.0.0.0/24,fd00:40::/112"
	var caches sync.Map // by cluster: planes run at the same time
	s := setup{nkpFlags: []string{"--skip-services", "default/kube-dns,default/none", "--service-cidr", ranges}, needs: ownSettings}
	s.before = func(c *cluster) {
		caches.Store(c, c.addNodeCache(clusterIP(dns)))
		c.elsewhere(vip(dns), clusterIP(unknown))
		c.listen(c.Node, 9153)
		c.listen(c.Node, 8080) // its health, which is no port of the Service
		kubeDNS := service("kube-dns", clusterIP(dns), loadBalancer(nil, vip(dns)), ports(
			v1.ServicePort{Name: "dns", Port: 53, Protocol: v1.ProtocolUDP},
			v1.ServicePort{Name: "metrics", Port: 9153, Protocol: v1.ProtocolTCP},
			v1.ServicePort{Name: "web", Port: 80, Protocol: v1.ProtocolTCP}))
		c.serve(kubeDNS, c.here, c.there)
		c.serve(service("thief", clusterIP(1), externalIPs(clusterIP(dns)), ports(
			v1.ServicePort{Name: "metrics", Port: 9153, Protocol: v1.ProtocolTCP})), c.here)
	}
	onEveryPlaneWith(t, s, func(t *testing.T, c *cluster) {
		cache, _ := caches.Load(c)
		c.resolveAll(t, cache.(*nodeCache), nightly.Count(2000, 20_000))

		other, none := by(c.Node), by(c.External)
		c.expect(t,
			probe{name: "another port of the Service, from a pod", from: c.pod, to: clusterIP(dns).on(9153), want: other},
			probe{name: "another port of the Service, from the node", from: c.Node, to: clusterIP(dns).on(9153), want: other},
			probe{name: "a port that the Service does not have, from a pod", from: c.pod, to: clusterIP(dns).on(8080), want: other},
			probe{name: "a port that the Service does not have, from the node", from: c.Node, to: clusterIP(dns).on(8080), want: other},
			probe{name: "a port that the Service does not have, from outside", from: c.External, local: of(c.External), to: clusterIP(dns).on(8080), want: other},
			probe{name: "its load balancer's address", from: c.pod, to: vip(dns).on(80), want: none},
			probe{name: "another Service is served", from: c.pod, to: clusterIP(1).on(9153), want: by(c.here)},
			probe{name: "a port that another Service does not have is refused", from: c.pod, to: clusterIP(1).on(81), want: refused, needs: unknownPorts},
			probe{name: "an address that no Service has is dropped", from: c.pod, to: clusterIP(unknown).on(80), want: dropped, needs: unknownPorts},
		)
		for _, ask := range []struct {
			command []string
			want    string
		}{
			{[]string{"status", "--socket", c.socket()}, "1 Service left to another program of the node (--skip-services): default/kube-dns"},
			{[]string{"services", "kube-dns", "--socket", c.socket()}, "NOT served: --skip-services leaves it to another program of the node"},
			{[]string{"trace", "--socket", c.socket(), "--from", c.pod.IP4.String(), "--to", "40.0.0.10:53", "--protocol", "udp"},
				"--skip-services leaves it to another program of the node"},
			{[]string{"trace", "--socket", c.socket(), "--from", c.pod.IP4.String(), "--to", "40.0.0.10:8080"},
				"the cluster IP of Service default/kube-dns, which --skip-services leaves"},
			{append([]string{"plan", "-o", "json"}, c.nkpFlags()...), `"default/kube-dns"`},
		} {
			if out, status := c.run(append([]string{c.bin}, ask.command...)...); status > 1 || !strings.Contains(out, ask.want) {
				t.Errorf("nkp %s ends with %d and does not say %q:\n%s", ask.command[0], status, ask.want, tail(out, 2000))
			}
		}
	})
}

// resolveAll has a pod and the node resolve names in both families while the cache restarts ten times. All queries must be
// answered by the cache.
func (c *cluster) resolveAll(t *testing.T, cache *nodeCache, queries int) {
	t.Helper()
	const clients = 4 // a pod and the node in each family
	var done, failed atomic.Int64
	var first atomic.Value
	var all sync.WaitGroup
	for i := range clients {
		from, at := []*testbed.Host{c.pod, c.Node}[i%2], cache.at[i/2]
		all.Go(func() {
			for n := range queries / clients {
				who, err := resolve(c.ctx, from, at, uint16(n))
				if done.Add(1); err != nil || who != cacheName {
					failed.Add(1)
					first.CompareAndSwap(nil, fmt.Sprintf("%s at %s: %q, %v", from.Name, at, who, err))
				}
			}
		})
	}
	restarts := 0
	for ; restarts < 10; restarts++ {
		for at := int64(restarts+1) * int64(queries) / 12; done.Load() < at; {
			time.Sleep(time.Millisecond)
		}
		cache.end()
		must(t, cache.listen())
	}
	all.Wait()
	t.Logf("%d queries, %d restarts, %d failed; the cache was asked %d times", done.Load(), restarts, failed.Load(), cache.asked.Load())
	if failed.Load() > 0 {
		t.Errorf("%d of %d queries failed, the first: %v", failed.Load(), done.Load(), first.Load())
	}
}
