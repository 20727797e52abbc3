package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Functions that decode a switch's state without knowing the desired state, for tools that show both.

// Mark is the decoded value of a packet's reg1 or a connection's ct_mark.
type Mark struct {
	Port       uint32 // id of the Service port
	Service    bool   // it goes through a Service
	Masquerade bool   // to be masqueraded
	Local      bool   // to endpoints of this node only
}

// ReadMark decodes a value of reg1 or ct_mark.
func ReadMark(v uint32) Mark {
	return Mark{
		Port:       v >> markIDShift,
		Service:    v&markService != 0,
		Masquerade: v&markMasquerade != 0,
		Local:      v&markLocal != 0,
	}
}

// PortOfCookie returns the id of the Service port that a flow belongs to, 0 for shared ones; ours is false
// for a flow that is not nkp's.
func (l Layout) PortOfCookie(cookie uint64) (id uint32, ours bool) {
	own, mask := l.Cookies()
	return portID(cookie), cookie&mask == own
}

// PortObjects returns the cookie, the mask of its bits to match, and the first and last group id of a Service
// port's own objects.
func (l Layout) PortObjects(id uint32) (cookie, mask uint64, groupLo, groupHi uint32) {
	lo := l.group(id, 0, 0)
	return l.cookie(cookieStatic, id), ^uint64(cookieDrops), lo, lo + (1<<6 - 1)
}

// ChoosesByHash reports whether a group belongs to a Service port and chooses an endpoint by the datapath's
// hash of a packet.
func (l Layout) ChoosesByHash(group uint32) bool {
	first, last := l.Groups()
	kind := (group - first) >> 4 & 3
	return group >= first && group <= last &&
		l.groupID(group) != 0 && (kind == groupCluster || kind == groupLocal)
}

// InstalledEndpoints returns, sorted, the endpoints that the flows and groups in st choose from for new
// connections of a Service port: those for policy Local if local is set, else those for policy Cluster.
func (l Layout) InstalledEndpoints(st *flow.State, id uint32, local bool) []netip.AddrPort {
	r := installed{Layout: l, State: st, id: id, local: local}
	for _, kinds := range [][2]uint32{
		{groupCluster, groupLocal},
		{groupAffinityCluster, groupAffinityLocal},
	} {
		kind := kinds[0]
		if local {
			kind = kinds[1]
		}
		r.group(l.group(id, kind, 0))
	}
	r.flows(tableServices, nil) // a single endpoint
	r.flows(tableRanges, nil)
	slices.SortFunc(r.found, netip.AddrPort.Compare)
	return slices.Compact(r.found)
}

// installed is the state of one call of InstalledEndpoints.
type installed struct {
	Layout
	*flow.State
	id    uint32
	local bool
	found []netip.AddrPort
}

// group collects the endpoints that the buckets of a group lead to.
func (r *installed) group(id uint32) {
	g := r.State.Groups[id]
	if g == nil {
		return
	}

	for i := range g.Buckets {
		var pin uint32 // what the bucket puts into reg2
		for _, a := range g.Buckets[i].Actions {
			switch a := a.(type) {
			case flow.CT:
				r.translated(a)
			case flow.ToGroup:
				if a.ID > g.ID { // a part has a higher id than its group, so there is no loop
					r.group(a.ID)
				}
			case flow.SetField:
				if a.Field == flow.Reg2 {
					pin = uint32(a.Value)
				}
			case flow.Resubmit:
				switch a.Table {
				case r.table(tableLearn):
					r.flows(tablePinned, &pin)
				case r.table(tableWide):
					r.flows(tableWide, nil)
				}
			}
		}
	}
}

// flows collects the endpoints of the Service port's flows in a table: for one value of reg2, or for all if
// pin is nil.
func (r *installed) flows(table uint8, pin *uint32) {
	for key, f := range r.State.Flows {
		if key.Table != r.table(table) || pin != nil && key.Match.Reg[2] != flow.Exactly(*pin) {
			continue
		}
		reg1 := uint64(key.Match.Reg[1].Value)
		for _, a := range f.Actions {
			switch a := a.(type) {
			case flow.SetField:
				if a.Field == flow.Reg1 {
					reg1 = a.Value
				}
			case flow.CT:
				if (reg1&markLocal != 0) == r.local {
					r.translated(a)
				}
			}
		}
	}
}

func (r *installed) translated(ct flow.CT) {
	if ct.NAT.Kind == flow.NATDst {
		r.found = append(r.found, netip.AddrPortFrom(ct.NAT.Addr, ct.NAT.PortMin))
	}
}
