package dataplane

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
)

// portOf returns a Service port of a Service of some cost, at an address.
func portOf(service string, port, cost, serviceCost, address int) *k8s.ServicePort {
	n := named(service)
	n.Port = fmt.Sprint(port)
	return &k8s.ServicePort{Name: n, Cost: cost, ServiceCost: serviceCost,
		Frontends: []k8s.Frontend{{Type: k8s.ClusterIP, Address: netip.AddrFrom4([4]byte{10, 0, byte(address >> 8), byte(address)}), Port: 80}}}
}

func put(in *Inbox, ports ...*k8s.ServicePort) {
	c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
	for _, sp := range ports {
		c.Ports[sp.Name] = sp
	}
	in.Put(&k8s.Model{}, c)
}

// begun returns an Inbox whose first update was taken.
func begunInbox() *Inbox {
	in := NewInbox(func(...k8s.Family) {})
	in.Put(&k8s.Model{}, k8s.Changes{})
	in.Take()
	return in
}

// Behind a Service of 100 ports that costs 300,000, another's change waits for one portion at most.
func TestLargeServiceHoldsUpNobody(t *testing.T) {
	in := begunInbox()
	var large []*k8s.ServicePort
	for i := range 100 {
		large = append(large, portOf("large", i, 3000, 300_000, 1000+i))
	}
	put(in, large...)
	for i := range 20 {
		ahead := 0
		for _, sp := range in.Take().Ports {
			ahead += sp.Cost
		}
		if ahead > Portion {
			t.Fatalf("an update of cost %d, at most %d", ahead, Portion)
		}
		small := portOf(fmt.Sprint("small", i), 0, 30, 30, i)
		put(in, small)
		if u := in.Take(); u.Ports[small.Name] == nil || len(u.Ports) > 4 || in.Idle() || len(in.Signal) != 1 {
			t.Fatalf("the change is not in the next update, or with too much: %d ports", len(u.Ports))
		}
	}
	updates := 0
	for ; !in.Idle(); updates++ {
		in.Take()
	}
	if updates == 0 || updates > 60 { // each port comes once more when the last is there
		t.Errorf("the rest took %d updates", updates)
	}
}

// A stream of small changes does not hold up a large Service for ever.
func TestSmallChangesHoldUpNoLargeService(t *testing.T) {
	in := begunInbox()
	large := portOf("large", 0, 40_000, 40_000, 1)
	put(in, large)
	for i := range 3 {
		put(in, portOf("small", 0, 30, 30, 2+i))
		if in.Take().Ports[large.Name] != nil {
			return
		}
	}
	t.Error("not taken in three updates")
}

// A large Service whose ports change all the time does not hold up a larger one for ever.
func TestLargeServiceHoldsUpNoLargerOne(t *testing.T) {
	in := begunInbox()
	larger := portOf("larger", 0, 20_000, 20_000, 1)
	put(in, larger)
	for i := range 3 {
		put(in, portOf("large", 0, 9_000, 18_000, 2+i))
		if in.Take().Ports[larger.Name] != nil {
			return
		}
	}
	t.Error("not taken in three updates")
}

// Whatever is divided, addresses have one owner after each update, those that go from one to another have one all the time, and all is as
// wanted in the end. Services grow and shrink while they get and lose addresses.
func TestPortionsMoveAddresses(t *testing.T) {
	r := rand.New(rand.NewPCG(nightly.Seed(t), 6))
	for range nightly.Count(300, 20_000) {
		in := begunInbox()
		wanted, taken := map[k8s.PortName]*k8s.ServicePort{}, map[k8s.PortName]*k8s.ServicePort{}
		owner := map[netip.Addr]k8s.PortName{}
		apply := func() {
			for n, sp := range in.Take().Ports {
				if taken[n] = sp; sp == nil {
					delete(taken, n)
				}
			}
			now := map[netip.Addr]k8s.PortName{}
			for n, sp := range taken {
				at := sp.Frontends[0].Address
				if o, ok := now[at]; ok {
					t.Fatalf("%s belongs to %s and %s", at, o, n)
				}
				now[at] = n
			}
			for n, sp := range wanted {
				if sp == nil {
					continue
				}
				at := sp.Frontends[0].Address
				if o, ok := owner[at]; ok && now[at] == (k8s.PortName{}) {
					t.Fatalf("%s has left %s, and %s does not have it yet", at, o, n)
				}
			}
			owner = now
		}
		for range 6 {
			c := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
			free := r.Perm(12)
			for i := range 10 {
				cost := []int{30, 30, 6000, 40_000}[r.IntN(4)]
				sp := portOf(fmt.Sprint("s", i), 0, cost, cost*(1+r.IntN(2)), free[i])
				if c.Ports[sp.Name] = sp; r.IntN(5) == 0 {
					c.Ports[sp.Name] = nil
				}
				wanted[sp.Name] = c.Ports[sp.Name]
			}
			in.Put(&k8s.Model{}, c)
			for range r.IntN(3) {
				if !in.Idle() {
					apply()
				}
			}
		}
		for !in.Idle() {
			apply()
		}
		for n, sp := range wanted {
			if taken[n] != sp {
				t.Fatalf("%s is not as wanted", n)
			}
		}
	}
}

// What a plane gives back, because nothing of it is installed, comes again in portions, whatever it costs, and what is new goes before
// it. A newer state of it replaces what was given back.
func TestReturnedPortsComeInPortions(t *testing.T) {
	const most = Portion + 6000
	in := NewInbox(func(...k8s.Family) {})
	var all []*k8s.ServicePort
	for i := range 100 {
		all = append(all, portOf(fmt.Sprint("s", i), 0, 6000, 6000, i))
	}
	put(in, all...)
	if u := in.Take(); len(u.Ports) != len(all) {
		t.Fatalf("%d ports at first, want all", len(u.Ports))
	}

	in.Return(all)
	newer, gone := portOf("s1", 0, 30, 30, 1), all[2].Name
	put(in, newer)
	in.Put(&k8s.Model{}, k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{gone: nil}})
	got := map[k8s.PortName]*k8s.ServicePort{}
	for i := 0; !in.Idle(); i++ {
		small := portOf(fmt.Sprint("small", i), 0, 30, 30, 200+i)
		if i < 10 {
			put(in, small)
		}
		u, cost := in.Take(), 0
		for n, sp := range u.Ports {
			if got[n] = sp; sp != nil {
				cost += sp.Cost
			}
		}
		if cost > most || i < 10 && u.Ports[small.Name] == nil {
			t.Fatalf("update %d: a cost of %d, at most %d; the change in it: %v", i, cost, most, u.Ports[small.Name])
		}
		if i > 300 {
			t.Fatal("no end")
		}
	}
	for _, sp := range all {
		want := sp
		switch sp.Name {
		case newer.Name:
			want = newer
		case gone:
			want = nil
		}
		if got[sp.Name] != want {
			t.Errorf("%s is not as wanted", sp.Name)
		}
	}
}

// The ports of a large new Service are Partial until the last one comes, and none is in the end.
func TestPartialUntilTheLastPort(t *testing.T) {
	in := begunInbox()
	var large []*k8s.ServicePort
	for i := range 20 {
		large = append(large, portOf("large", i, 3000, 60_000, 1))
		large[i].Frontends[0].Port = uint16(80 + i)
	}
	put(in, large...)
	last := map[k8s.PortName]*k8s.ServicePort{}
	for !in.Idle() {
		before := len(last)
		for n, sp := range in.Take().Ports {
			last[n] = sp
		}
		complete := 0
		for _, sp := range last {
			if !sp.Partial {
				complete++
			}
		}
		if before < len(last) && len(last) < len(large) && complete > 0 {
			t.Fatalf("%d of %d ports are there, %d of them not partial", len(last), len(large), complete)
		}
	}
	for _, sp := range large {
		if last[sp.Name] != sp {
			t.Errorf("%s is %+v", sp.Name, last[sp.Name])
		}
	}
}

// What a plane gives back while it has it as Partial comes again as it is wanted: none is Partial in the end.
func TestReturnedPartialPorts(t *testing.T) {
	in := begunInbox()
	var large []*k8s.ServicePort
	for i := range 20 {
		large = append(large, portOf("large", i, 3000, 60_000, 1))
		large[i].Frontends[0].Port = uint16(80 + i)
	}
	for returned := range 20 {
		put(in, large...)
		last := map[k8s.PortName]*k8s.ServicePort{}
		for i := 0; !in.Idle(); i++ {
			maps.Copy(last, in.Take().Ports)
			if i == returned {
				in.Return(slices.Collect(maps.Values(last)))
			}
		}
		for _, sp := range large {
			if last[sp.Name] != sp {
				t.Fatalf("returned after update %d: %s is %+v", returned, sp.Name, last[sp.Name])
			}
		}
		gone := k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{}}
		for _, sp := range large {
			gone.Ports[sp.Name] = nil
		}
		for in.Put(&k8s.Model{}, gone); !in.Idle(); {
			in.Take()
		}
	}
}

// Large Services that each take over the next one's addresses come at once, and finding them takes work in proportion to their number.
func TestLongRowOfMoves(t *testing.T) {
	allocated := func(services int) uint64 {
		in := begunInbox()
		ports := func(shift int) (list []*k8s.ServicePort) {
			for i := range services {
				sp := portOf(fmt.Sprint("s", i), 0, 40_000, 40_000, i)
				sp.Frontends = nil
				for j := range 20 {
					at := netip.AddrFrom4([4]byte{10, byte((i + shift) >> 8), byte(i + shift), byte(j)})
					sp.Frontends = append(sp.Frontends, k8s.Frontend{Type: k8s.ExternalIP, Address: at, Port: 80})
				}
				list = append(list, sp)
			}
			return list
		}
		put(in, ports(0)...)
		for !in.Idle() {
			in.Take()
		}
		put(in, ports(1)...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if n := len(in.Take().Ports); n != services || !in.Idle() {
			t.Errorf("%d of %d Services come at once", n, services)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	allocated(10)
	if few, many := allocated(100), allocated(800); many > 16*few {
		t.Errorf("%d bytes for 100 Services, %d for 800", few, many)
	}
}

// A plane's own portion bounds what comes at once; and what is remembered of ports to compare them does not grow while they change
// and wait.
func TestOwnPortion(t *testing.T) {
	in := begunInbox()
	in.SetPortion(1000)
	for round := range 100 {
		var large []*k8s.ServicePort
		for i := range 40 {
			large = append(large, portOf("large", i, 400+round, 16_000, 1000+i))
		}
		put(in, large...)
		cost := 0
		for _, sp := range in.Take().Ports {
			cost += sp.Cost
		}
		if cost == 0 || cost > 1000 {
			t.Fatalf("an update of cost %d", cost)
		}
		if n := len(in.portions.numbers); n > 5*40 {
			t.Fatalf("round %d: %d Service ports are remembered", round, n)
		}
	}
}
