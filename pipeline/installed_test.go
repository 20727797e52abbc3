package pipeline

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// What is read back of a Service port, by its cookie and group ids alone, has exactly the endpoints in force: for Services of
// every kind, few endpoints and many, with and without affinity.
func TestInstalledEndpoints(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var ports []*k8s.ServicePort
	for i := range 300 {
		s := randomShape(rng, i, i)
		if i%50 == 0 {
			s.Cluster, s.Affinity = 2500, i%100*36 // more than a group describes
		}
		ports = append(ports, s.ServicePort())
	}
	c := compile(t, testConfig(), ports...)
	l, all := c.Config().Layout, c.State()
	seen := 0
	for _, sp := range ports {
		id := c.ports[sp.Name].id
		cookie, mask, lo, hi := l.PortObjects(id)
		own := flow.NewState()
		for k, f := range all.Flows {
			if f.Cookie&mask == cookie {
				own.Flows[k] = f
			}
		}
		for g, o := range all.Groups {
			if g >= lo && g <= hi {
				own.Groups[g] = o
			}
		}
		for _, set := range k8s.Sets {
			var want []netip.AddrPort
			if reached(sp, set) {
				for _, e := range sp.Endpoints(set) {
					want = append(want, e.Addr)
				}
			}
			if got := l.InstalledEndpoints(own, id, set == k8s.OnNode); !slices.Equal(got, want) {
				t.Fatalf("%s, set %d: got %v, want %v", sp.Name, set, got, want)
			}
			seen += len(want)
		}
	}
	if seen < 5000 {
		t.Errorf("only %d endpoints were compared", seen)
	}
}

// reached reports whether some frontend leads to the endpoints of a set: only then they are installed.
func reached(sp *k8s.ServicePort, set k8s.Set) bool {
	return slices.ContainsFunc(sp.Frontends, func(f k8s.Frontend) bool {
		return (f.Policy == k8s.Local) == (set == k8s.OnNode) || set == k8s.Anywhere && f.Type != k8s.ClusterIP
	})
}

func TestReadMark(t *testing.T) {
	for v, want := range map[uint32]Mark{
		0:          {},
		0x27423f01: {Port: 0x27423f, Service: true},
		0x27423f03: {Port: 0x27423f, Service: true, Masquerade: true},
		0x00000105: {Port: 1, Service: true, Local: true},
	} {
		if got := ReadMark(v); got != want {
			t.Errorf("%#x: %+v, want %+v", v, got, want)
		}
	}
	l := DefaultLayout()
	if id, ours := l.PortOfCookie(l.cookie(cookieLearned, 7)); id != 7 || !ours {
		t.Errorf("a learned flow: %d, %t", id, ours)
	}
	if _, ours := l.PortOfCookie(7); ours {
		t.Errorf("cookie %#x counts as nkp's", 7)
	}
}
