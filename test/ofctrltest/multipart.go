package ofctrltest

import "encoding/binary"

const (
	allTables = 0xff
	allGroups = 0xfffffffc
	replyMore = 1
	fullReply = 60_000 // bytes, after which a reply goes on in the next message
)

// reply collects the entries of an answer and sends them in as many messages as it takes.
type reply struct {
	c   *Session
	xid uint32
	b   []byte
}

func (c *Session) reply(xid uint32, typ uint16) *reply {
	return &reply{c: c, xid: xid, b: binary.BigEndian.AppendUint16(nil, typ)}
}

func (r *reply) add(entry []byte) {
	if len(r.b) < 8 {
		r.b = append(r.b, 0, 0, 0, 0, 0, 0)
	}
	if len(r.b)+len(entry) > fullReply {
		r.b[3] = replyMore
		r.c.Send(MultipartReply, r.xid, r.b...)
		r.b[3] = 0
		r.b = r.b[:8]
	}
	r.b = append(r.b, entry...)
}

func (r *reply) end() {
	r.add(nil)
	r.c.Send(MultipartReply, r.xid, r.b...)
}

func (c *Session) multipart(xid uint32, body []byte) error {
	if len(body) < 8 {
		return errShort
	}
	typ, ask := binary.BigEndian.Uint16(body), body[8:]
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r := c.reply(xid, typ)
	switch typ {
	case FlowDesc, Aggregate:
		if len(ask) < 32 {
			return errShort
		}
		table, cookie, mask := ask[0], ask[16:24], binary.BigEndian.Uint64(ask[24:])
		count := uint32(0)
		for k, m := range s.flows {
			if (table == allTables || k[0] == table) && bears(m, cookie, mask) {
				if count++; typ == FlowDesc {
					r.add(flowDescription(m))
				}
			}
		}
		if typ == Aggregate { // ofp_stats with the flow count (OXS class 0x8002, field 3)
			r.add(append(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 12, 0x80, 0x02, 0x06, 4}, count), 0, 0, 0, 0))
		}
	case GroupStats:
		if len(ask) < 4 {
			return errShort
		}
		for id := range s.groups {
			if of := binary.BigEndian.Uint32(ask); of != allGroups && of != id {
				continue
			}
			e := make([]byte, 40)
			binary.BigEndian.PutUint16(e, 40)
			binary.BigEndian.PutUint32(e[4:], id)
			r.add(e)
		}
	case GroupDesc:
		if len(ask) < 4 {
			return errShort
		}
		if id := binary.BigEndian.Uint32(ask); id == allGroups {
			for _, m := range s.groups {
				r.add(groupDescription(m))
			}
		} else if m := s.groups[id]; m != nil {
			r.add(groupDescription(m))
		}
	case TableStats:
		var sizes [256]uint32
		for k := range s.flows {
			sizes[k[0]]++
		}
		for t, n := range sizes {
			e := make([]byte, 24) // ofp_table_stats (§7.3.5.4)
			e[0] = byte(t)
			binary.BigEndian.PutUint32(e[4:], n)
			r.add(e)
		}
	case MeterDesc:
		for _, m := range s.meters {
			r.add(meterDescription(m))
		}
	}
	r.end()
	return nil
}
