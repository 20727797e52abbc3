package live

import (
	"context"
	"errors"
	"slices"

	"github.com/nkp-proxy/nkp/internal/trace"
)

// maxHashes bounds the values of the datapath's hash that the packet is followed for. A group distinguishes
// at most 256; for a Service with more endpoints, flows distinguish more
// (docs/decisions/slots-stay.md). One costs ovs-vswitchd 0.2 ms.
const maxHashes = 1024

// follow has the switch trace the packet once for each value of the datapath's hash, so that every bucket of
// the groups on its way is tried. left is the number of values beyond maxHashes.
func (s *Switch) follow(
	ctx context.Context,
	p packet,
	q trace.Question,
) (walks []*walk, left int, err error) {
	first, states, err := s.settle(ctx, p, q, 1, nil)
	if err != nil {
		return nil, 0, err
	}
	walks = []*walk{first}
	mask := first.hashMask

	for len(walks) <= int(mask) && len(walks) < maxHashes {
		var params [][]string
		n := len(walks)
		// The value mask+1 stands for 0, which is no hash.
		for hash := n + 1; hash <= int(min(mask, maxHashes-1))+1; hash++ {
			params = append(params, s.params(p, q, uint32(hash), states))
		}

		err := s.Daemon.Traces(ctx, params, func(text string) error {
			w, err := parseWalk(text, s.Config.Layout.ChoosesByHash)
			if err == nil {
				walks = append(walks, w)
				mask |= w.hashMask
			}
			return err
		})
		if err != nil {
			return nil, 0, err
		}

		for i := n; i < len(walks); i++ {
			if !slices.Equal(walks[i].states, states) {
				if walks[i], _, err = s.settle(ctx, p, q, uint32(i+1), walks[i].states); err != nil {
					return nil, 0, err
				}
			}
		}
	}
	return walks, max(0, int(mask)+1-len(walks)), nil
}

// settle repeats ofproto/trace until the ct_states that it is given (--ct-next) are those that the packet's
// path results in.
func (s *Switch) settle(
	ctx context.Context,
	p packet,
	q trace.Question,
	hash uint32,
	states []string,
) (*walk, []string, error) {
	const most = 6 // passes through conntrack; nkp's pipeline has up to 4
	for range most {
		params := s.params(p, q, hash, states)
		text, err := s.Daemon.Trace(ctx, params...)
		if err != nil {
			return nil, nil, err
		}
		w, err := parseWalk(text, s.Config.Layout.ChoosesByHash)
		if err != nil {
			return nil, nil, err
		}
		if slices.Equal(w.states, states) || len(w.states) > most {
			return w, states, nil
		}
		states = w.states
	}
	return nil, nil, errors.New("the switch sends the packet through conntrack again and again")
}

// params returns the parameters of ofproto/trace.
func (s *Switch) params(p packet, q trace.Question, hash uint32, states []string) []string {
	list := []string{s.Bridge, p.flowText(q, hash)}
	for _, state := range states {
		list = append(list, "--ct-next", state)
	}
	return list
}
