package ofctrl

import (
	"context"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// partSize is about how many flows, or groups, a part of a reading has: Open vSwitch and nkp take some
// milliseconds for them.
const partSize = 1024

// wholeSize is partSize for a reading without pauses. Open vSwitch serves nobody else while it answers, and
// holds the answer in memory, some 350 bytes a flow.
var wholeSize = 256 * partSize // changed by tests

// maxParts bounds the parts of one table: for each of them Open vSwitch looks at all flows of the table.
const maxParts = 32

// ownFlows reads nkp's own flows: all at once, or those of each table by themselves if they are too many, or
// if there are pauses and no index leads to the flows.
func (r *reading) ownFlows(ctx context.Context, c *Conn) error {
	all := flow.Cookies{Cookie: r.filter.Cookie, Mask: r.filter.CookieMask}
	of, size := byIndex(all.Cookie, all.Mask), wholeSize
	if r.pause != nil {
		size = partSize
	}
	if r.pause == nil || of[0].Mask == ^uint64(0) {
		counted, err := c.FlowCount(ctx, all.Cookie, all.Mask)
		if err != nil {
			return err
		}
		if n := int(counted.Flows); n <= wholeSize {
			for _, cookies := range of {
				if err := r.ownOfTable(ctx, c, allTables, cookies, n, wholeSize); err != nil {
					return err
				}
			}
			return nil
		}
	}

	sizes, err := c.TableSizes(ctx)
	if err != nil {
		return err
	}
	for t, n := range sizes {
		own := int(n)
		if own > size { // most of them may be others', or pins
			counted, err := c.FlowCount(ctx, all.Cookie, all.Mask, uint8(t))
			if err != nil {
				return err
			}
			own = int(counted.Flows)
		}
		if own == 0 {
			continue
		}
		if err := r.ownOfTable(ctx, c, uint8(t), all, own, size); err != nil {
			return err
		}
	}
	return nil
}

// ownOfTable reads the own flows of a table with some cookies, about n of them, in parts of about size by the
// low bits of their cookies.
func (r *reading) ownOfTable(
	ctx context.Context, c *Conn, table uint8, of flow.Cookies, n, size int,
) error {
	r.expected += n
	parts := 1
	for parts*size < n && parts < maxParts && of.Mask&uint64(parts) == 0 {
		parts *= 2
	}

	for i := range uint64(parts) {
		err := c.ask(ctx, mpFlowDesc, 1, func(b []byte, _ int) ([]byte, error) {
			return flowRequest(b, table, of.Cookie|i, of.Mask|uint64(parts-1))
		}, r.flowReply)
		if err == nil && r.pause != nil {
			err = r.pause()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// foreignInParts calls take for each foreign flow of a table that holds about size flows. It reads a large
// table in parts, by the lowest bits in which the cookies differed when it was read last, because the cookies
// of others may differ in any bits, or in none.
func (r *reading) foreignInParts(
	ctx context.Context, c *Conn, table uint8, size int,
	take func(*flow.Flow),
) error {
	mask := uint64(0)
	if r.pause != nil {
		differ := c.foreign.cookieBits(table)
		for parts := 1; parts*partSize < size && parts < maxParts && differ != 0; parts *= 2 {
			mask |= differ & -differ
			differ &= differ - 1
		}
	}

	inAll, inAny := ^uint64(0), uint64(0)
	reply := func(b []byte) error {
		return r.each(b, func(fd flowDesc) {
			inAll, inAny = inAll&fd.flow.Cookie, inAny|fd.flow.Cookie
			if r.filter.foreign(fd.flow.Cookie) {
				take(fd.flow)
			}
		})
	}

	for cookie, done := uint64(0), false; !done; done = cookie == 0 {
		err := c.ask(ctx, mpFlowDesc, 1, func(b []byte, _ int) ([]byte, error) {
			return flowRequest(b, table, cookie, mask)
		}, reply)
		if err == nil && r.pause != nil {
			err = r.pause()
		}
		if err != nil {
			return err
		}
		cookie = (cookie - mask) & mask // the next value of these bits
	}

	if size > partSize {
		c.foreign.setCookieBits(table, inAny&^inAll)
	}
	return nil
}

// cookieBits returns the bits in which the cookies of a large table differ, as far as that is known.
func (o *foreignFlows) cookieBits(table uint8) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return ^o.alike[table]
}

func (o *foreignFlows) setCookieBits(table uint8, differ uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.alike[table] = ^differ
}
