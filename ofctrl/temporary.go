package ofctrl

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// hardTimeoutAt is the offset of hard_timeout in a flow-mod (OpenFlow 1.5.1 §7.3.4.2).
const hardTimeoutAt = 28

// AddTemporary adds flows that the switch itself deletes after a time, rounded down to seconds: they go even
// if this process ends. A flow that is there already starts anew.
func (c *Conn) AddTemporary(ctx context.Context, flows []*flow.Flow, lifetime time.Duration) error {
	encoder := newEncoder()
	n := len(flows)
	errs, err := c.doBatch(ctx, "temporary flows", n, func(b []byte, i int, xid uint32) ([]byte, error) {
		at := len(b)
		b, err := encoder.flowAdd(b, xid, flows[i])
		if err != nil {
			return b, err
		}
		binary.BigEndian.PutUint16(b[at+hardTimeoutAt:], uint16(lifetime/time.Second))
		return b, nil
	})
	for i, e := range errs {
		return fmt.Errorf("add %s: %w", flows[i], e)
	}
	return err
}
