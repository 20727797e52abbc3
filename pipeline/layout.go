package pipeline

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Layout is the set of numbers that nkp uses on a bridge, which others may use too. README.md explains each
// part.
type Layout struct {
	// TableBase is added to every table number.
	TableBase uint8
	// NextTable is where packets go when nkp is done with them; negative: to the flows of others in table 0
	// (passes), or the NORMAL action if table 0 is not nkp's.
	NextTable int
	// ExitRegister is the register, 4 to 15, whose highest bit marks packets that nkp has passed on.
	ExitRegister uint8
	// CookiePrefix is the upper 24 bits of every cookie of nkp's.
	CookiePrefix uint32
	// GroupBase is the first of the 2^28 group ids that nkp takes; a multiple of 2^28, at most 0xe0000000.
	GroupBase uint32
	// MeterID is the meter on rejects; those of single ports, and of pings, follow from it (podMeters).
	MeterID uint32
	// ZoneDNAT and ZoneSNAT are the two conntrack zones.
	ZoneDNAT, ZoneSNAT uint16
}

// DefaultLayout is the layout of a bridge that nkp has to itself.
func DefaultLayout() Layout {
	return Layout{
		NextTable:    -1,
		ExitRegister: 10,
		CookiePrefix: 0x6e6b70, // "nkp"
		GroupBase:    0x60000000,
		MeterID:      0x6e6b,
		ZoneDNAT:     1001,
		ZoneSNAT:     1002,
	}
}

// Tables, relative to TableBase.
const (
	tableEntry     = 0  // conntrack entry, un-NAT
	tableServices  = 1  // which Service, if any
	tableOutput    = 2  // hairpin, masquerade, exit
	tableTrack     = 3  // conntrack, except for SYNs to a Service range
	tablePins      = 10 // session affinity: learned pins
	tablePinned    = 11 // session affinity: pinned endpoint, or the group
	tableRanges    = 12 // loadBalancerSourceRanges
	tableReject    = 13 // to the controller, which answers
	tableLearn     = 14 // session affinity: makes the pin
	tableWide      = 15 // Services with more endpoints than a dp_hash group takes evenly
	tableCount     = 16 // counters of Services: looked into on the way
	tableSeed      = 17 // session affinity: the seed of the choice
	tableFragments = 18 // UDP in fragments, on the userspace datapath
	tableSlots     = 19 // consistent choice: the client's port selects the endpoint
	tableUnSNAT    = 20 // second conntrack lookup of replies to masqueraded traffic
	tableDeliver   = 30 // L3 of Service packets
	tableLast      = tableDeliver
)

// Cookie kinds: bits 39-32 of a cookie. Bits 31 to 27 are cookieDrops, cookieUnserved, those of canaries and
// cookiePings, bits 21-0 the id of the Service port, or 0.
const (
	cookieStatic  = 1
	cookieLearned = 2
	cookieNoPins  = 3 // the flow NoPins
	cookieSeed    = 4 // the flow Seed
	cookieProbe   = 5 // the flows of a Probe
)

// Bits of the cookies of flows that drop or refuse packets, so that their counters can be read alone.
// cookieUnserved is the bit of the flows for unserved ports, one for each ClusterIP, whose counters are read
// as a sum. cookieCanary is the bit of the canaries' flows, cookieCanary6 that of IPv6 among them.
// cookiePings is the bit of the flows that answer pings.
const (
	cookieDrops    = 1 << 31
	cookieUnserved = 1 << 30
	cookieCanary   = 1 << 29
	cookieCanary6  = 1 << 28
	cookiePings    = 1 << 27
)

// portID returns the id of the Service port in a cookie, 0 for shared flows.
func portID(cookie uint64) uint32 {
	return uint32(cookie) &^ (cookieDrops | cookieUnserved | cookieCanary | cookieCanary6 | cookiePings)
}

// Bits of reg1 and ct_mark; bits 8-31 are the id of the Service port.
const (
	markService    = 0x1 // a connection through a Service
	markMasquerade = 0x2 // to be masqueraded
	markLocal      = 0x4 // among the local endpoints only
	markIDShift    = 8
	markIDMask     = 0xffffff00
)

// idBits is the width of a Service port's id: with kind and part it makes the 28 bits of a group id.
const idBits = 22

// Kinds of group: bits 5-4 of a group id. Bits 3-0 number the parts of a group that is too large for one.
const (
	groupCluster = iota
	groupLocal
	groupAffinityCluster
	groupAffinityLocal
)

// Validate reports what is wrong with the layout, nil if it can be used.
func (l Layout) Validate() error {
	switch {
	case int(l.TableBase)+tableLast > 253:
		return fmt.Errorf("table base %d leaves no room for %d tables below table 254",
			l.TableBase, tableLast+1)
	case l.NextTable >= int(l.TableBase) && l.NextTable <= int(l.TableBase)+tableLast:
		return fmt.Errorf("next table %d is one of nkp's own (%d to %d)",
			l.NextTable, l.TableBase, int(l.TableBase)+tableLast)
	case l.NextTable > 253:
		return fmt.Errorf("next table %d is out of range 0-253", l.NextTable)
	case l.ExitRegister < flow.NumRegs || l.ExitRegister >= flow.NumAllRegs:
		return fmt.Errorf("exit register %d is out of range %d-%d",
			l.ExitRegister, flow.NumRegs, flow.NumAllRegs-1)
	case l.CookiePrefix == 0 || l.CookiePrefix >= 1<<24:
		return fmt.Errorf("cookie prefix %#x is not a non-zero 24-bit number", l.CookiePrefix)
	case l.GroupBase%(1<<28) != 0 || l.GroupBase > 0xe0000000:
		return fmt.Errorf("group base %#x is not a multiple of 0x10000000 up to 0xe0000000", l.GroupBase)
	case l.MeterID == 0 || l.MeterID > lastMeter-lastPort:
		return fmt.Errorf("meter id %#x is out of range 1-%#x", l.MeterID, lastMeter-lastPort)
	case l.ZoneDNAT == l.ZoneSNAT:
		return fmt.Errorf("conntrack zone %d is given for both destination and source NAT", l.ZoneDNAT)
	case l.ZoneDNAT == 0 || l.ZoneSNAT == 0:
		return fmt.Errorf("conntrack zone 0 is the host's own")
	}
	return nil
}

// Cookies returns the cookie and mask that select all of nkp's flows, learned ones included.
func (l Layout) Cookies() (cookie, mask uint64) {
	return uint64(l.CookiePrefix) << 40, 0xffffff << 40
}

// StaticCookies returns the cookie and mask that select the flows nkp installs itself: not the learned ones.
func (l Layout) StaticCookies() (cookie, mask uint64) {
	return uint64(l.CookiePrefix)<<40 | cookieStatic<<32, 0xffffffff << 32
}

// VolatileCookies select the flows of nkp's that come and go with traffic: pins, the seed of session affinity
// or NoPins, and those of a Probe.
func (l Layout) VolatileCookies() []flow.Cookies {
	prefix := uint64(l.CookiePrefix) << 40
	return []flow.Cookies{
		{Cookie: prefix | cookieLearned<<32, Mask: 0xfffffffe << 32}, // and cookieNoPins
		{Cookie: prefix | cookieSeed<<32, Mask: 0xfffffffe << 32},    // and cookieProbe
	}
}

// Pins returns what all pins of a Service port have in common.
func (l Layout) Pins(id uint32) flow.Learned {
	return flow.Learned{Table: l.PinTable(), Cookie: l.cookie(cookieLearned, id)}
}

// PinCookies returns the cookie and mask that select all pins.
func (l Layout) PinCookies() (cookie, mask uint64) {
	return l.cookie(cookieLearned, 0), 0xffffffff << 32
}

// PinTable returns the table of pins, which holds nothing else of nkp's.
func (l Layout) PinTable() uint8 { return l.table(tablePins) }

// SeedTable returns the table in which a client without a pin gets the seed of its choice.
func (l Layout) SeedTable() uint8 { return l.table(tableSeed) }

// StaticTables returns the table numbers of a Compiler's flows: all but those of pins and of the seed, which
// depend on traffic.
func (l Layout) StaticTables() []uint8 {
	return slices.DeleteFunc(l.Tables(), func(t uint8) bool {
		return t == l.PinTable() || t == l.SeedTable()
	})
}

// Groups returns the first and last group id that nkp takes.
func (l Layout) Groups() (first, last uint32) { return l.GroupBase, l.GroupBase + 1<<28 - 1 }

// Tables returns the table numbers that nkp takes.
func (l Layout) Tables() []uint8 {
	var ts []uint8
	for _, t := range []uint8{
		tableEntry, tableServices, tableOutput, tableTrack,
		tablePins, tablePinned,
		tableRanges, tableReject,
		tableLearn, tableWide, tableCount, tableSeed, tableFragments, tableSlots, tableUnSNAT, tableDeliver} {
		ts = append(ts, l.table(t))
	}
	return ts
}

// RejectTable is the table whose packet-ins ask for a rejection.
func (l Layout) RejectTable() uint8 { return l.table(tableReject) }

// FrontendTable returns the table whose flows, by destination, find out which Service port a packet is for.
func (l Layout) FrontendTable() uint8 { return l.table(tableServices) }

// UnSNATTable returns the table where answers to masqueraded connections go on, with the client's address.
func (l Layout) UnSNATTable() uint8 { return l.table(tableUnSNAT) }

func (l Layout) table(t uint8) uint8 { return l.TableBase + t }

func (l Layout) cookie(kind uint64, id uint32) uint64 {
	return uint64(l.CookiePrefix)<<40 | kind<<32 | uint64(id)
}

func (l Layout) group(id, kind, part uint32) uint32 { return l.GroupBase | id<<6 | kind<<4 | part }

// groupID returns the id of the Service port that a group of nkp's belongs to.
func (l Layout) groupID(group uint32) uint32 { return (group - l.GroupBase) >> 6 }

// passed is the bit of ExitRegister on packets that nkp has passed on.
const passed = 1 << 31

// passes reports whether packets that nkp has nothing more to do with go on to the flows of others in table
// 0, as they would have without nkp.
func (l Layout) passes() bool { return l.NextTable < 0 && l.TableBase == 0 }

// exit returns the actions for packets that nkp has nothing more to do with. Flows of others find no trace of
// nkp but the bit that keeps nkp's own flows in table 0 from matching: the bit comes first, so that who
// follows the packet knows that nkp is done (internal/live).
func (l Layout) exit() []flow.Action {
	if !l.passes() {
		return []flow.Action{l.forward()}
	}
	as := []flow.Action{
		flow.SetField{Field: flow.RegField(l.ExitRegister), Value: passed, Mask: passed},
		flow.ClearCT{},
	}
	for n := range uint8(flow.NumRegs) {
		as = append(as, flow.SetField{Field: flow.RegField(n), Mask: 0xffffffff})
	}
	return append(as, flow.Resubmit{Table: 0})
}

// forward returns the action for packets that go past the flows of others in table 0.
func (l Layout) forward() flow.Action {
	if l.NextTable < 0 {
		return flow.Output{Port: flow.PortNormal}
	}
	return flow.Resubmit{Table: uint8(l.NextTable)}
}
