//go:build linux

package packets

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// manyClients returns how many clients the tests of this file have; each connects to five times as many Services.
// NKP_COST=20 is what docs/performance.md shows.
func manyClients() int {
	if n, err := strconv.Atoi(os.Getenv("NKP_COST")); err == nil {
		return n
	}
	return 2
}

// costs is a cluster whose clients connect to Services of several sizes, whose endpoints share ten pods on this node and ten elsewhere.
type costs struct {
	*cluster
	clients  []*testbed.Pod
	ends     [2][]*testbed.Pod // here and elsewhere
	services int
}

// costSizes are numbers of endpoints.
var costSizes = []int{1, 2, 10}

// A costWay is how clients reach the Services: by ClusterIP or load balancer address, and where the endpoints are.
type costWay struct {
	name string
	net  int    // first byte of the Services' addresses
	pods string // what counts as pods: consistent choice is for other clients
	far  int    // 1: endpoints on another node
}

var costWays = []costWay{
	{"endpoints here", 40, "10.0.0.0/16", 0},
	{"endpoints elsewhere", 40, "10.0.0.0/16", 1},
	{"consistent choice", 20, "192.0.2.0/24", 0},
}

func (w costWay) vip(net, n, i int) string { return fmt.Sprintf("%d.0.%d.%d", net, 10*w.far+n+1, i+1) }

func newCosts(t *testing.T, clients, services int) *costs {
	c := &costs{cluster: newCluster(t, testbed.Options{}), services: services}
	// Cached flows expire after 10 s without a packet. The counts are of what clients need.
	_, err := c.Vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=3600000")
	must(t, err)
	c.clients, err = c.AddPods(make([]testbed.PodSpec, clients)...)
	must(t, err)
	c.ends[0], err = c.AddPods(make([]testbed.PodSpec, 10)...)
	must(t, err)
	c.ends[1], err = c.AddRemotePods(make([]testbed.PodSpec, 10)...)
	must(t, err)
	for _, p := range slices.Concat(c.ends[0], c.ends[1]) {
		_, err := p.ServeTCP(8080)
		must(t, err)
	}
	return c
}

// serve runs nkp with the Services of a way.
func (c *costs) serve(w costWay) {
	var objects []any
	for n, size := range costSizes {
		for i := range c.services {
			s := service(fmt.Sprintf("s%d-%d-%d", w.far, size, i), w.vip(40, n, i))
			if w.net != 40 {
				consistent(w.vip(w.net, n, i))(s)
				s.Spec.Ports[0].NodePort = int32(30000 + n*c.services + i)
			}
			var es []discoveryv1.Endpoint
			for j := range size {
				es = append(es, at(c.ends[w.far][(i+j)%10].IP4))
			}
			objects = append(objects, s, slice(s, 8080, es...))
		}
	}
	c.put(objects...)
	c.flags = []string{"--cluster-cidr", w.pods}
	c.run()
	c.settle()
}

// A costRound is what one round of connections took, and their answers by Service and pod.
type costRound struct {
	connections, upcalls int
	who                  []map[string]int
}

// round has each client connect times times to each Service of a size.
func (c *costs) round(t *testing.T, w costWay, n, times int) costRound {
	t.Helper()
	services := c.services
	r := costRound{connections: len(c.clients) * services * times, who: make([]map[string]int, services)}
	for i := range r.who {
		r.who[i] = map[string]int{}
	}
	var mu sync.Mutex // protects who
	before := c.upcalls(t)
	parallel(len(c.clients), func(k int) {
		for j := range services {
			i := (j + k*services/len(c.clients)) % services
			for range times {
				a, err := c.clients[k].AskWith(c.ctx, "tcp", w.vip(w.net, n, i)+":80", testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
				if err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				r.who[i][a.Pod]++
				mu.Unlock()
			}
		}
	})
	r.upcalls = c.upcalls(t) - before
	return r
}

// cached returns how many flows the datapath caches, how many of them are of IPv4, and how many masks a packet is compared with on
// average since the statistics were cleared.
func (c *costs) cached(t *testing.T) (flows, ipv4 int, masks string) {
	t.Helper()
	dump, err := c.Appctl("dpctl/dump-flows")
	must(t, err)
	stats, err := c.Appctl("dpif-netdev/pmd-stats-show")
	must(t, err)
	for line := range strings.Lines(stats) {
		if _, n, ok := strings.Cut(line, "avg. subtable lookups per megaflow hit:"); ok {
			masks = strings.TrimSpace(n)
		}
	}
	return strings.Count(dump, "recirc_id("), strings.Count(dump, "eth_type(0x0800)"), masks
}

// spread returns the largest and the smallest share of a Service's endpoints in its connections, relative to an equal share: the
// median of the Services.
func (r costRound) spread(size int, more costRound) (most, least float64) {
	var highs, lows []float64
	for i, who := range r.who {
		all := map[string]int{}
		maps.Copy(all, who)
		for pod, n := range more.who[i] {
			all[pod] += n
		}
		total := 0
		for _, n := range all {
			total += n
		}
		counts := slices.Collect(maps.Values(all))
		high, low := slices.Max(counts), 0
		if len(counts) == size {
			low = slices.Min(counts)
		}
		highs, lows = append(highs, float64(high*size)/float64(total)), append(lows, float64(low*size)/float64(total))
	}
	slices.Sort(highs)
	slices.Sort(lows)
	return highs[len(highs)/2], lows[len(lows)/2]
}

// Clients that connect to many Services cost the datapath a bounded number of cached flows for each pair of client and Service, and
// later connections few upcalls.
func TestManyClientsManyServices(t *testing.T) {
	nightlyOr(t, "NKP_COST", "it measures cost at scale")
	c := newCosts(t, manyClients(), 5*manyClients())
	const times = 20
	slots := []int{0, 16, 64} // of costSizes
	for _, w := range costWays {
		c.serve(w)
		for n, size := range costSizes {
			t.Run(fmt.Sprintf("%s/%d", w.name, size), func(t *testing.T) {
				_, err := c.Appctl("dpctl/del-flows")
				must(t, err)
				first := c.round(t, w, n, times)
				_, err = c.Appctl("dpif-netdev/pmd-stats-clear")
				must(t, err)
				second := c.round(t, w, n, times)
				if t.Failed() {
					return
				}
				flows, ipv4, masks := c.cached(t)
				most, least := first.spread(size, second)
				pairs := float64(len(c.clients) * c.services)
				perPair, later := float64(flows)/pairs, float64(second.upcalls)/float64(second.connections)
				// For each pair: one that finds the Service, one for each slot, and for each endpoint one that sends the first packet on and
				// one for each direction. Besides, a few for each port of the bridge.
				if most := (1+slots[n]+3*size)*int(pairs) + 10*(len(c.clients)+20); w.net == 40 && ipv4 > most {
					t.Errorf("%d cached flows of IPv4, want %d at most", ipv4, most)
				}
				if size == 1 && later > 0.05 {
					t.Errorf("%.2f upcalls a connection in the second round, though there is nothing to choose", later)
				}
				t.Logf("%d clients, %d Services: %d cached flows, %.1f a pair; %.2f upcalls a connection, then %.2f; %s masks a search; shares %.2f to %.2f",
					len(c.clients), c.services, flows, perPair, float64(first.upcalls)/float64(first.connections), later, masks, least, most)
			})
		}
		must(t, c.agent.Stop(syscall.SIGTERM))
	}
}
