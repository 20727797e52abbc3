package ofctrl

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Counters are of flows.
type Counters struct {
	Flows, Packets, Bytes uint64
}

// GroupCounters are of one group. Buckets are in the order of the group's buckets.
type GroupCounters struct {
	Packets, Bytes uint64
	Buckets        []Counters // Flows is 0
}

// FlowCount returns number, packets and bytes of the flows in some tables (none named: in all) whose cookie
// is cookie in the bits of mask. Open vSwitch visits every flow of those tables for it, unless mask is full,
// or but for one bit (byIndex).
func (c *Conn) FlowCount(ctx context.Context, cookie, mask uint64, tables ...uint8) (Counters, error) {
	if len(tables) == 0 {
		tables = []uint8{allTables}
	}
	var out Counters
	of := byIndex(cookie, mask)
	err := c.aggregate(ctx, len(tables)*len(of), func(b []byte, i int) ([]byte, error) {
		k := of[i%len(of)]
		return flowRequest(b, tables[i/len(of)], k.Cookie, k.Mask)
	}, func(n Counters) {
		out.Flows, out.Packets, out.Bytes = out.Flows+n.Flows, out.Packets+n.Packets, out.Bytes+n.Bytes
	})
	return out, err
}

// byIndex divides a question for a cookie with one bit that may have either value into one for each whole
// cookie: Open vSwitch has an index of these, and otherwise visits all flows of a table (ofproto/ofproto.c,
// collect_rules_loose).
func byIndex(cookie, mask uint64) []flow.Cookies {
	const whole = ^uint64(0)
	if either := ^mask; bits.OnesCount64(either) == 1 {
		return []flow.Cookies{{Cookie: cookie, Mask: whole}, {Cookie: cookie | either, Mask: whole}}
	}
	return []flow.Cookies{{Cookie: cookie, Mask: mask}}
}

// CookieCounts returns how many flows of a table have each of the cookies.
func (c *Conn) CookieCounts(ctx context.Context, table uint8, cookies []uint64) ([]uint64, error) {
	out := make([]uint64, 0, len(cookies))
	err := c.aggregate(ctx, len(cookies), func(b []byte, i int) ([]byte, error) {
		return flowRequest(b, table, cookies[i], ^uint64(0))
	}, func(n Counters) { out = append(out, n.Flows) })
	if err == nil && len(out) != len(cookies) {
		err = fmt.Errorf("%w: %d answers to %d questions", ErrProtocol, len(out), len(cookies))
	}
	return out, err
}

// aggregate asks n questions for the sums over flows, and hands each the answers in the order of the
// questions.
func (c *Conn) aggregate(
	ctx context.Context, n int,
	question func([]byte, int) ([]byte, error),
	each func(Counters),
) error {
	return c.ask(ctx, mpAggregate, n, question, func(b []byte) error {
		// ofp_stats with OXS fields for packets, bytes and flow count (OpenFlow 1.5.1 §7.3.5, §7.2.4)
		const oxsFlows = 0x80020604
		_, packets, size, err := flowStats(b)
		if err != nil {
			return err
		}
		sum := Counters{Packets: packets, Bytes: size}
		for s := b[4:u16(b[2:])]; len(s) > 0; s = s[4+int(s[3]):] {
			if u32(s) == oxsFlows {
				sum.Flows = uint64(u32(s[4:]))
			}
		}
		each(sum)
		return nil
	})
}

// tableStatsLen is the length of ofp_table_stats (OpenFlow 1.5.1 §7.3.5).
const tableStatsLen = 24

// TableSizes returns how many flows each table holds, of all owners. The cost to the switch does not depend
// on their number.
func (c *Conn) TableSizes(ctx context.Context) (sizes [256]uint32, err error) {
	empty := func(b []byte, _ int) ([]byte, error) { return b, nil }
	err = c.ask(ctx, mpTable, 1, empty, func(b []byte) error {
		if len(b)%tableStatsLen != 0 {
			return short("table statistics")
		}
		for ; len(b) > 0; b = b[tableStatsLen:] {
			sizes[b[0]] = u32(b[4:])
		}
		return nil
	})
	return sizes, err
}

// FlowCounter are the numbers of one flow. Size is in bytes of Ethernet frames, without their checksum.
type FlowCounter struct {
	Cookie   uint64
	Table    uint8
	Priority uint16
	Packets  uint64
	Size     uint64
}

// TableCounters returns the counters of the flows of one table whose cookie is cookie in the bits of mask.
// Open vSwitch learns of packets in its datapath about once a second, so the counters may be that old.
func (c *Conn) TableCounters(ctx context.Context, table uint8, cookie, mask uint64) ([]FlowCounter, error) {
	return c.flowCounters(ctx, 1, func(b []byte, _ int) ([]byte, error) {
		return flowRequest(b, table, cookie, mask)
	})
}

// CookieCounters returns the counters of the flows in all tables that have one of the cookies. Open vSwitch
// visits no other flows for it.
func (c *Conn) CookieCounters(ctx context.Context, cookies []uint64) ([]FlowCounter, error) {
	return c.flowCounters(ctx, len(cookies), func(b []byte, i int) ([]byte, error) {
		return flowRequest(b, allTables, cookies[i], ^uint64(0))
	})
}

// flowCounters asks n questions for flows.
func (c *Conn) flowCounters(
	ctx context.Context, n int,
	question func([]byte, int) ([]byte, error),
) ([]FlowCounter, error) {
	var out []FlowCounter
	err := c.ask(ctx, mpFlowDesc, n, question, func(b []byte) error {
		return records(b, "flow description", flowDescLen+4, 0, func(f []byte) error {
			match := (int(u16(f[flowDescLen+2:])) + 7) &^ 7
			if flowDescLen+match > len(f) {
				return short("flow description")
			}
			_, packets, size, err := flowStats(f[flowDescLen+match:])
			out = append(out, FlowCounter{
				Cookie: u64(f[16:]), Table: f[4], Priority: u16(f[6:]),
				Packets: packets, Size: size,
			})
			return err
		})
	})
	return out, err
}

// MeterDrops returns how many packets the meters that are wanted have dropped, and how many flows use them.
// wanted must not block.
func (c *Conn) MeterDrops(
	ctx context.Context, wanted func(id uint32) bool,
) (packets uint64, flows int, err error) {
	// ofp_meter_stats, then ofp_meter_band_stats for each band (OpenFlow 1.5.1 §7.3.5.14)
	const head, band = 40, 16
	all := func(b []byte, _ int) ([]byte, error) { return idRequest(b, meterAll), nil }
	err = c.ask(ctx, mpMeterStats, 1, all, func(b []byte) error {
		return records(b, "meter statistics", head, 4, func(m []byte) error {
			if !wanted(u32(m)) {
				return nil
			}
			flows += int(u32(m[12:]))
			for bands := m[head:]; len(bands) >= band; bands = bands[band:] {
				packets += u64(bands)
			}
			return nil
		})
	})
	return packets, flows, err
}

const groupStatsLen = 40

// GroupCounters returns the counters of the groups from lo to hi. More than maxObjects of them are an
// ErrTooMuch.
func (c *Conn) GroupCounters(ctx context.Context, lo, hi uint32) (map[uint32]GroupCounters, error) {
	out := map[uint32]GroupCounters{}
	err := c.eachGroup(ctx, lo, hi, func(id uint32, stats []byte) { out[id] = groupCounters(stats) })
	return out, err
}

// fewGroups are asked for one by one, so that the answer does not grow with the number of other groups.
const fewGroups = 256

// eachGroup calls visit for each group from lo to hi with its ofp_group_stats (OpenFlow 1.5.1 §7.3.5).
func (c *Conn) eachGroup(ctx context.Context, lo, hi uint32, visit func(id uint32, stats []byte)) error {
	visited, questions := 0, 1
	request := func(b []byte, _ int) ([]byte, error) { return idRequest(b, groupAll), nil }
	if hi-lo < fewGroups {
		questions = int(hi-lo) + 1
		request = func(b []byte, i int) ([]byte, error) { return idRequest(b, lo+uint32(i)), nil }
	}
	return c.ask(ctx, mpGroupStats, questions, request, func(b []byte) error {
		return records(b, "group statistics", groupStatsLen, 0, func(stats []byte) error {
			if id := u32(stats[4:]); id >= lo && id <= hi {
				if visited++; visited > maxObjects {
					return fmt.Errorf("%w: more than %d groups", ErrTooMuch, maxObjects)
				}
				visit(id, stats)
			}
			return nil
		})
	})
}

func groupCounters(stats []byte) GroupCounters {
	g := GroupCounters{
		Packets: u64(stats[16:]),
		Bytes:   u64(stats[24:]),
		Buckets: make([]Counters, 0, (len(stats)-groupStatsLen)/16),
	}
	for b := stats[groupStatsLen:]; len(b) >= 16; b = b[16:] {
		g.Buckets = append(g.Buckets, Counters{Packets: u64(b), Bytes: u64(b[8:])})
	}
	return g
}
