package pipeline

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A new process finds out from the switch which ids an earlier one gave. Most are those that Load gives, too;
// the others show as flows that differ. The Service port that has most of an id's installed frontends takes
// the id over. An id that nobody takes over rests: its Service port was deleted meanwhile.

// A place is where a Service port is served; the zero Addr: at a NodePort.
type place struct {
	family   uint16 // EtherType
	protocol uint8
	addr     netip.Addr
	port     uint16
}

// A claim is how many of an id's installed frontends a Service port has. Cluster IPs decide, which are not
// given to another Service as easily as other addresses.
type claim struct{ clusterIPs, others int }

func (a claim) less(b claim) bool {
	return a.clusterIPs < b.clusterIPs || a.clusterIPs == b.clusterIPs && a.others < b.others
}

// A claimant is the Service port that is served at a place.
type claimant struct {
	name      k8s.PortName
	clusterIP bool
}

// adoptIDs makes the Compiler take over the ids that the flows read so far show, and lets those rest that
// nobody has.
func (x *Comparison) adoptIDs() {
	c := x.c
	claims := map[uint32]map[k8s.PortName]claim{} // of the ids on the switch of which some flow differs
	for _, f := range x.flows {
		if id := portID(f.Cookie); id != 0 && id <= idCount {
			claims[id] = map[k8s.PortName]claim{}
		}
	}
	if len(claims) == 0 {
		return
	}

	// The differing flows, and the holders' flows that do not differ, which were not kept.
	each := func(do func(*flow.Flow)) {
		for _, f := range x.flows {
			do(f)
		}
		for id := range claims {
			if p := c.owner[id]; p != nil {
				for _, f := range c.compilePort(p).flows {
					if c.wanted[f.Digest(c.seed)] == x.number {
						do(f)
					}
				}
			}
		}
	}

	served := c.servers(each)
	each(func(f *flow.Flow) {
		of, who := claims[portID(f.Cookie)], served[placeOf(&f.Match)]
		if f.Table != c.cfg.Layout.FrontendTable() || of == nil || who.name == (k8s.PortName{}) {
			return
		}
		v := of[who.name]
		if who.clusterIP {
			v.clusterIPs++
		} else {
			v.others++
		}
		of[who.name] = v
	})

	x.assignAgain(claims, heirs(claims))
}

// servers returns which Service port is served at the place of each flow, if any is. It looks for these
// places alone: those of all Services take gigabytes.
func (c *Compiler) servers(each func(do func(*flow.Flow))) map[place]claimant {
	at := map[place]claimant{}
	each(func(f *flow.Flow) { at[placeOf(&f.Match)] = claimant{} })
	if len(at) == 0 {
		return at
	}
	for n, p := range c.ports {
		for i := range p.sp.Frontends {
			f := &p.sp.Frontends[i]
			where := place{ethType(n.Family), ipProto(n.Protocol), f.Address, f.Port}
			if _, asked := at[where]; asked && f.ShadowedBy == "" {
				at[where] = claimant{n, f.Type == k8s.ClusterIP}
			}
		}
	}
	return at
}

// placeOf returns the place that a frontend's flow leads from.
func placeOf(m *flow.Match) place {
	at := place{family: m.EthType, protocol: m.IPProto, port: m.DstPort}
	if m.Dst.IsSingleIP() {
		at.addr = m.Dst.Addr()
	}
	return at
}

// heirs returns the id that each Service port takes over. Each has one id at most, and each id one Service
// port.
func heirs(claims map[uint32]map[k8s.PortName]claim) map[k8s.PortName]uint32 {
	taken, by := map[k8s.PortName]uint32{}, map[k8s.PortName]claim{}
	for _, id := range slices.Sorted(maps.Keys(claims)) {
		var heir k8s.PortName
		var best claim
		for n, v := range claims[id] {
			if mayHave(n, id) && (best.less(v) || v == best && n.Compare(heir) < 0) {
				heir, best = n, v
			}
		}
		if best != (claim{}) && by[heir].less(best) {
			taken[heir], by[heir] = id, best
		}
	}
	return taken
}

// assignAgain gives Service ports the ids that they take over. Those that have an id of the claims, which is
// not theirs, get another one.
func (x *Comparison) assignAgain(claims map[uint32]map[k8s.PortName]claim, heirs map[k8s.PortName]uint32) {
	c := x.c
	var moved []*placed
	for id := range claims {
		if p := c.owner[id]; p != nil && heirs[p.sp.Name] != id {
			moved = append(moved, p)
		}
	}
	for n := range heirs {
		if p := c.ports[n]; claims[p.id] == nil { // else it is there already, or has its id
			moved = append(moved, p)
		}
	}
	slices.SortFunc(moved, func(a, b *placed) int { return a.sp.Name.Compare(b.sp.Name) })

	// First all give up what they have, then those inherit who do, then what is left over rests, then the
	// others get what is free. Objects are exchanged all at once: one Service port's new ones can be
	// another's old ones.
	var was, now objects
	for _, p := range moved {
		was.append(c.compilePort(p))
		delete(c.owner, p.id)
		delete(c.ids.holders, p.id)
	}
	for _, p := range moved {
		if p.id = heirs[p.sp.Name]; p.id == 0 {
			continue
		}
		if _, rests := c.ids.resting[p.id]; rests {
			was.append(c.restingObjects(p.id))
			c.ids.release(p.id)
		}
		c.ids.holders[p.id] = p.sp.Name
	}
	for id := range claims {
		if !c.ids.inUse(id) {
			c.ids.resting[id] = rest{}
			now.append(c.restingObjects(id))
		}
	}
	for _, p := range moved {
		if p.id == 0 {
			p.id = c.ids.free(p.sp.Name)
			c.ids.holders[p.id] = p.sp.Name
		}
		c.owner[p.id] = p
		now.append(c.compilePort(p))
	}
	x.exchange(&was, &now)
}
