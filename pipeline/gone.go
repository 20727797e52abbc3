package pipeline

import (
	"maps"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Gone are the objects of an id that no Service port has: flows on the switch of which a Comparison has kept
// a part only, and groups.
type Gone struct {
	Flows  int
	Groups []uint32
}

// MaxKept is how many flows that no Service port wants a Comparison keeps, each of which takes 700 bytes: a
// Service within the limits of cost has 320,000, which are there if it was deleted, or refused, while nkp did
// not run.
var MaxKept = 1 << 17 // changed by tests

// keptOfEach is how many it keeps of each id in any case, by which a Service port can claim the id.
const keptOfEach = 8

// keeps reports whether a flow that differs is kept, and counts it.
func (x *Comparison) keeps(f *flow.Flow) bool {
	id := portID(f.Cookie)
	if id == 0 || x.c.owner[id] != nil {
		if x.kept[0]++; x.kept[0] <= MaxKept+x.c.flows {
			return true
		}
	} else if x.kept[id]++; len(x.flows) < MaxKept || x.kept[id] <= keptOfEach && len(x.flows) < 4*MaxKept {
		return true
	}
	if x.gone[id] == nil {
		x.gone[id] = &Gone{}
	}
	x.gone[id].Flows++
	return false
}

// Gone returns what was read of ids that no Service port has, but for what Delta deletes. again: a Service
// port has an id of which not all flows were kept, so that the switch must be read again; if that is of no
// use, another program adds flows under nkp's cookie. It must be called before Delta.
func (x *Comparison) Gone() (gone map[uint32]*Gone, again bool) {
	x.flowsRead()
	for id := range x.gone {
		again = again || id == 0 || x.c.owner[id] != nil
	}
	maps.DeleteFunc(x.flows, func(_ flow.Key, f *flow.Flow) bool {
		g := x.gone[portID(f.Cookie)]
		if g != nil {
			g.Flows++
		}
		return g != nil
	})
	return x.gone, again
}

// Clear adds to d what deletes all objects of an id that no Service port has, and keeps that it rests.
func (c *Compiler) Clear(d *flow.Delta, id uint32, gone *Gone) {
	if c.owner[id] != nil {
		return // by now; the next comparison finds what is left
	}
	cookie := c.cfg.Layout.cookie(cookieStatic, id)
	d.Clear = append(d.Clear, flow.Cookies{Cookie: cookie, Mask: ^uint64(0)},
		flow.Cookies{Cookie: cookie | cookieDrops, Mask: ^uint64(0)})
	d.DelLearned = append(d.DelLearned, c.cfg.Layout.Pins(id))
	d.DelGroups = append(d.DelGroups, gone.Groups...)
	if _, rests := c.ids.resting[id]; rests {
		d.SetFlows = append(d.SetFlows, c.restingObjects(id).flows...)
	}
}
