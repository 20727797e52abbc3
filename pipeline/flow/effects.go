package flow

import "encoding/binary"

// Effects are what the actions of a flow, or of a group's buckets, can do to the way of a packet. It can be
// compared.
type Effects struct {
	Conntrack bool      // they track the packet
	Tables    [4]uint64 // where the packet can go on, a bit for each table
	Clears    uint16    // registers whose highest bit they can clear, a bit for each
	groups    string    // where the packet can go on: ids of four bytes each
}

// maxGroups is how many groups of an action list are known at least.
const maxGroups = 64

// GoTo adds a table where the packet can go on.
func (e *Effects) GoTo(table uint8) { e.Tables[table/64] |= 1 << (table % 64) }

// LeadTo reports whether the packet can go on in a table.
func (e *Effects) LeadTo(table uint8) bool { return e.Tables[table/64]>>(table%64)&1 != 0 }

// Send adds a group where the packet can go on.
func (e *Effects) Send(group uint32) {
	e.addGroups(string(binary.BigEndian.AppendUint32(nil, group)))
}

func (e *Effects) addGroups(ids string) {
	if len(e.groups) < 4*maxGroups {
		e.groups += ids
	}
}

// Groups returns where the packet can go on. all is false if there may be more.
func (e *Effects) Groups() (ids []uint32, all bool) {
	for b := []byte(e.groups); len(b) > 0; b = b[4:] {
		ids = append(ids, binary.BigEndian.Uint32(b))
	}
	return ids, len(e.groups) < 4*maxGroups
}

// Add adds what further actions can do.
func (e *Effects) Add(o *Effects) {
	e.Conntrack = e.Conntrack || o.Conntrack
	e.Clears |= o.Clears
	e.addGroups(o.groups)
	for i := range e.Tables {
		e.Tables[i] |= o.Tables[i]
	}
}

// highest is the highest bit of a register.
const highest = 1 << 31

// EffectsOf returns what actions can do to the way of a packet.
func EffectsOf(as []Action) (e Effects) {
	for _, a := range as {
		switch a := a.(type) {
		case Resubmit:
			e.GoTo(a.Table)
		case ToGroup:
			e.Send(a.ID)
		case CT:
			e.Conntrack = true
			if a.Table != NoTable {
				e.GoTo(a.Table)
			}
		case SetField:
			if a.Mask&^a.Value&highest != 0 {
				e.Clears |= a.Field.register()
			}
		case Copy:
			if a.Dst.Ofs+a.Dst.N == 32 {
				e.Clears |= a.Dst.Field.register()
			}
		case UnknownAction:
			e.Add(&a.Effects)
		}
	}
	return e
}

// register returns the bit of Effects.Clears for a field, 0 if it is no register.
func (f Field) register() uint16 {
	for n := range uint8(NumAllRegs) {
		if f == RegField(n) {
			return 1 << n
		}
	}
	return 0
}
