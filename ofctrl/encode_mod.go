package ofctrl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"antrea.io/libOpenflow/openflow15"
	"antrea.io/libOpenflow/util"
	"antrea.io/ofnet/ofctrl"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Commands of flow-mod messages (OpenFlow 1.5.1 §7.3.4.2).
const (
	flowAdd          uint8 = 0
	flowDelete       uint8 = 3
	flowDeleteStrict uint8 = 4
)

// allTables is OFPTT_ALL (§7.3.4), noBuffer OFP_NO_BUFFER.
const (
	allTables        = 0xff
	noBuffer  uint32 = 0xffffffff
)

// flowModHead appends what precedes the match.
func flowModHead(b []byte, command, table uint8, priority uint16, cookie, cookieMask uint64) []byte {
	b = put64(put64(b, cookie), cookieMask)
	b = append(b, table, command, 0, 0, 0, 0) // no timeouts
	b = put16(b, priority)
	b = put32(b, noBuffer)
	b = put32(put32(b, flow.PortAny), groupAny)
	return append(b, 0, 0, 0, 0) // flags, importance
}

// flowAdd appends the message that adds a flow or replaces the one with its key.
func (e *encoder) flowAdd(b []byte, xid uint32, f *flow.Flow) ([]byte, error) {
	if f.Table == allTables {
		return b, errors.New("table 255 cannot hold flows")
	}
	b, at := begin(b, typeFlowMod, xid)
	b = flowModHead(b, flowAdd, f.Table, f.Priority, f.Cookie, 0)
	b, err := match(b, &f.Match, false)
	if err != nil {
		return b, err
	}
	if len(f.Actions) > 0 {
		instr := len(b)
		b = append(b, 0, instrApplyActions, 0, 0, 0, 0, 0, 0) // §7.2.5
		if b, err = e.actions(b, f.Actions); err != nil {
			return b, err
		}
		if len(b)-instr > maxMessage {
			return b, ErrTooLong
		}
		binary.BigEndian.PutUint16(b[instr+2:], uint16(len(b)-instr))
	}
	return b, end(b, at)
}

// Instructions (§7.2.5, ofp_instruction_type).
const (
	instrGotoTable    = 1
	instrWriteActions = 3
	instrApplyActions = 4
)

// sameCookie compares cookies by all bits but the highest. For an exact cookie Open vSwitch scans all flows
// that have it, instead of looking the match up (ofproto/ofproto.c, collect_rules_strict): deleting 60,000
// flows of one cookie blocked the switch for over a minute.
const sameCookie = 1<<63 - 1

// flowDelete appends the message that deletes the flow with this key if it has this cookie (see sameCookie).
func (e *encoder) flowDelete(b []byte, xid uint32, f *flow.Flow) ([]byte, error) {
	if f.Table == allTables {
		return b, errors.New("table 255 stands for all tables")
	}
	b, at := begin(b, typeFlowMod, xid)
	b = flowModHead(b, flowDeleteStrict, f.Table, f.Priority, f.Cookie, sameCookie)
	b, err := match(b, &f.Match, true)
	if err != nil {
		return b, err
	}
	return b, end(b, at)
}

// learnedDelete appends the message that deletes all flows of a table with a cookie.
func (e *encoder) learnedDelete(b []byte, xid uint32, l flow.Learned) ([]byte, error) {
	if l.Table == allTables || l.Cookie == 0 {
		return b, errors.New("learned flows are deleted by one table and a cookie that is not 0")
	}
	return deleteByCookie(b, xid, l.Table, l.Cookie, ^uint64(0))
}

// clear appends the message that deletes all flows of all tables under a cookie.
func (e *encoder) clear(b []byte, xid uint32, c flow.Cookies) ([]byte, error) {
	if c.Mask == 0 || c.Cookie&^c.Mask != 0 || c.Cookie == 0 {
		return b, errors.New("flows are cleared by a cookie that is not 0 and a mask that covers it")
	}
	return deleteByCookie(b, xid, allTables, c.Cookie, c.Mask)
}

func deleteByCookie(b []byte, xid uint32, table uint8, cookie, mask uint64) ([]byte, error) {
	b, at := begin(b, typeFlowMod, xid)
	b = flowModHead(b, flowDelete, table, 0, cookie, mask)
	b, err := match(b, &flow.Match{}, false)
	if err != nil {
		return b, err
	}
	return b, end(b, at)
}

// Commands of group-mod messages (§7.3.4.3); groupAddOrMod is Open vSwitch's OFPGC_ADD_OR_MOD.
const (
	groupAddOrMod     uint16 = 0x8000
	groupDeleteCmd    uint16 = 2
	groupInsertBucket uint16 = 3

	groupTypeSelect = 1

	bucketLast uint32 = 0xfffffffe
	bucketAll  uint32 = 0xffffffff
	groupMax   uint32 = 0xffffff00
	groupAll   uint32 = 0xfffffffc
	groupAny   uint32 = 0xffffffff
)

// groupPart appends the message that sets a group with its first buckets (i is 0), replacing those it has,
// or that adds further buckets at its end.
func (e *encoder) groupPart(b []byte, xid uint32, g *flow.Group, part []flow.Bucket, i int) ([]byte, error) {
	if g.ID > groupMax {
		return b, fmt.Errorf("group id %#x is reserved", g.ID)
	}
	if int(g.Method) >= len(methodTemplates) {
		return b, errors.New("unknown selection method")
	}

	command, bucket := groupAddOrMod, bucketAll
	if i > 0 {
		command, bucket = groupInsertBucket, bucketLast
	}

	b, at := begin(b, typeGroupMod, xid)
	b = append(put16(b, command), groupTypeSelect, 0)
	b = put32(b, g.ID)
	b = append(b, 0, 0, 0, 0) // length of the buckets, padding
	b = put32(b, bucket)

	start := len(b)
	var err error
	for k := range part {
		if b, err = e.bucket(b, &part[k]); err != nil {
			return b, err
		}
	}

	n := len(b) - start
	if i == 0 {
		b = append(b, methodTemplates[g.Method]...)
	}
	if err := end(b, at); err != nil {
		return b, err
	}
	binary.BigEndian.PutUint16(b[start-8:], uint16(n))
	return b, nil
}

func (e *encoder) bucket(b []byte, k *flow.Bucket) ([]byte, error) {
	if k.ID > groupMax {
		return b, fmt.Errorf("bucket id %#x is reserved", k.ID)
	}
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = put32(b, k.ID)
	b, err := e.actions(b, k.Actions)
	if err != nil {
		return b, err
	}
	n := len(b) - at - 8
	if n > maxMessage-16 {
		return b, ErrTooLong
	}
	b = append(b, weightTemplate...)
	binary.BigEndian.PutUint16(b[len(b)-4:], k.Weight)
	binary.BigEndian.PutUint16(b[at:], uint16(len(b)-at))
	binary.BigEndian.PutUint16(b[at+2:], uint16(n))
	return b, nil
}

// groupDelete appends the message that deletes one group, and with it every flow that points to it.
func (e *encoder) groupDelete(b []byte, xid uint32, id uint32) ([]byte, error) {
	if id > groupMax {
		return b, fmt.Errorf("group id %#x is reserved", id)
	}
	b, at := begin(b, typeGroupMod, xid)
	b = append(put16(b, groupDeleteCmd), groupTypeSelect, 0)
	b = put32(b, id)
	b = append(b, 0, 0, 0, 0)
	b = put32(b, bucketAll)
	return b, end(b, at)
}

// Commands of meter-mod messages (§7.3.4.5).
const (
	meterAdd    = openflow15.MC_ADD
	meterModify = openflow15.MC_MODIFY
	meterDelete = openflow15.MC_DELETE
)

// meterMax is OFPM_MAX (§7.3.4.5).
const meterMax = openflow15.M_MAX

// meterMod appends a meter-mod message.
func meterMod(b []byte, xid uint32, command int, m flow.Meter) ([]byte, error) {
	if m.ID == 0 || m.ID > meterMax {
		return b, fmt.Errorf("meter id %#x is reserved", m.ID)
	}
	if command != meterDelete && (m.Rate == 0 || m.Burst == 0) {
		return b, fmt.Errorf("meter %d needs a rate and a burst: Open vSwitch puts a burst of its own for 0",
			m.ID)
	}
	om := ofctrl.NewMeter(m.ID, ofctrl.MeterPktps|ofctrl.MeterBurst|ofctrl.MeterStats, nil)
	if command != meterDelete {
		band := openflow15.NewMeterBandDrop()
		band.Rate, band.BurstSize = m.Rate, m.Burst
		msg := util.Message(band)
		om.AddMeterBand(&msg)
	}
	mod := om.GetBundleMessage(command).GetMessage().(*openflow15.MeterMod)
	mod.Xid = xid
	raw, err := mod.MarshalBinary()
	if err != nil {
		return b, err
	}
	if len(raw) < headerLen || int(u16(raw[2:])) != len(raw) {
		return b, fmt.Errorf("meter %d: encoded length does not agree", m.ID)
	}
	return append(b, raw...), nil
}
