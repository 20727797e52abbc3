package ofctrl

import (
	"context"
	"fmt"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// CountedState are flows and groups of a switch with what they have counted.
type CountedState struct {
	*flow.State
	OfFlow  map[flow.Key]Counters // Counters.Flows is 0
	OfGroup map[uint32]GroupCounters
	More    int // number of objects that were left out
}

// ReadCounted reads the groups from lo to hi and the flows that have one of the cookies, at most as many as most. Of a table it reads
// all flows or none: Open vSwitch builds a whole reply in memory before it sends any of it.
func (c *Conn) ReadCounted(ctx context.Context, cookies []flow.Cookies, lo, hi uint32, most int) (*CountedState, error) {
	s := &CountedState{State: flow.NewState(), OfFlow: map[flow.Key]Counters{}, OfGroup: map[uint32]GroupCounters{}}
	r := &reading{filter: Filter{GroupLo: lo, GroupHi: hi}, dec: newDecoder(), to: &Snapshot{State: s.State}}

	var ids []uint32
	err := c.eachGroup(ctx, lo, hi, func(id uint32, stats []byte) {
		if len(ids) >= most {
			s.More++
			return
		}
		ids = append(ids, id)
		s.OfGroup[id] = groupCounters(stats)
	})
	if err == nil {
		err = r.describe(ctx, c, ids)
	}
	if err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}

	sizes, err := c.TableSizes(ctx)
	for t, n := range sizes {
		if n == 0 || err != nil {
			continue
		}
		var own int
		if own, err = c.countAll(ctx, cookies, uint8(t)); err != nil {
			break
		}
		if own > most-len(ids)-len(s.Flows) {
			s.More += own
			continue
		}
		err = c.ask(ctx, mpFlowDesc, len(cookies), func(b []byte, i int) ([]byte, error) {
			return flowRequest(b, uint8(t), cookies[i].Cookie, cookies[i].Mask)
		}, func(b []byte) error {
			return r.each(b, func(fd flowDesc) {
				s.Flows[fd.flow.Key] = fd.flow
				s.OfFlow[fd.flow.Key] = Counters{Packets: fd.packets, Bytes: fd.size}
			})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read flows: %w", err)
	}
	return s, nil
}
