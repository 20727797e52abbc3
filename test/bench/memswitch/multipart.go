package memswitch

import "encoding/binary"

// Multipart types (§7.3.5.1).
const (
	flowDesc   = 1
	aggregate  = 2
	groupStats = 6
	groupDesc  = 7
	meterDesc  = 10
)

const (
	allTables = 0xff
	allGroups = 0xfffffffc
	replyMore = 1
	fullReply = 60_000 // bytes, after which a reply goes on in the next message
)

// reply collects the entries of an answer and sends them in as many messages as it takes.
type reply struct {
	c   *session
	xid uint32
	b   []byte
}

func (c *session) reply(xid uint32, typ uint16) *reply {
	return &reply{c: c, xid: xid, b: binary.BigEndian.AppendUint16(nil, typ)}
}

func (r *reply) add(entry []byte) {
	if len(r.b) < 8 {
		r.b = append(r.b, 0, 0, 0, 0, 0, 0)
	}
	if len(r.b)+len(entry) > fullReply {
		r.b[3] = replyMore
		r.c.send(multipartReply, r.xid, r.b...)
		r.b[3] = 0
		r.b = r.b[:8]
	}
	r.b = append(r.b, entry...)
}

func (r *reply) end() {
	r.add(nil)
	r.c.send(multipartReply, r.xid, r.b...)
}

func (c *session) multipart(xid uint32, body []byte) error {
	if len(body) < 8 {
		return errShort
	}
	typ, ask := binary.BigEndian.Uint16(body), body[8:]
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r := c.reply(xid, typ)
	switch typ {
	case flowDesc, aggregate:
		if len(ask) < 32 {
			return errShort
		}
		table, cookie, mask := ask[0], ask[16:24], binary.BigEndian.Uint64(ask[24:])
		count := uint32(0)
		for _, e := range s.flows {
			if (table == allTables || e[4] == table) && bears(e, cookie, mask) {
				if count++; typ == flowDesc {
					r.add(e)
				}
			}
		}
		if typ == aggregate { // ofp_stats with the flow count (OXS class 0x8002, field 3)
			r.add(append(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 12, 0x80, 0x02, 0x06, 4}, count), 0, 0, 0, 0))
		}
	case groupStats:
		for id := range s.groups {
			e := make([]byte, 40)
			binary.BigEndian.PutUint16(e, 40)
			binary.BigEndian.PutUint32(e[4:], id)
			r.add(e)
		}
	case groupDesc:
		if len(ask) < 4 {
			return errShort
		}
		if id := binary.BigEndian.Uint32(ask); id == allGroups {
			for _, e := range s.groups {
				r.add(e)
			}
		} else if e := s.groups[id]; e != nil {
			r.add(e)
		}
	case meterDesc:
		for _, e := range s.meters {
			r.add(e)
		}
	}
	r.end()
	return nil
}
