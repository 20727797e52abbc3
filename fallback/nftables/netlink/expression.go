//go:build linux

package netlink

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// register returns the number of the 32-bit register at an index. Where four of them are one 128-bit
// register, its number is used, as the kernel reports it.
func register(i uint32) uint32 {
	if i%4 == 0 {
		return unix.NFT_REG_1 + i/4
	}
	return unix.NFT_REG32_00 + i
}

// encode returns a rule's expressions, each as the attributes of a list element.
func encode(f k8s.Family, r rules.Rule) (list [][]byte, err error) {
	for _, s := range r {
		for _, e := range expressions(f, s) {
			if own, ok := e.(interface{ bytes() []byte }); ok {
				list = append(list, own.bytes())
				continue
			}
			b, problem := expr.Marshal(family(f), e)
			if problem != nil && err == nil {
				err = fmt.Errorf("rule %q: %w", r.Text(f), problem)
			}
			list = append(list, b)
		}
	}
	return list, err
}

// expressions returns the kernel's expressions for a statement.
func expressions(f k8s.Family, s rules.Statement) []expr.Any {
	switch s := s.(type) {
	case rules.Prefix:
		return append(load(f, s.Field, 0), inPrefix(s)...)
	case rules.Device:
		name, exact := strings.CutSuffix(s.Name, "*")
		if !exact {
			name += "\x00"
		}
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(0)}, compare(s.Not, padName(name, exact)),
		}
	case rules.Local:
		return []expr.Any{
			&expr.Fib{
				Register:       register(0),
				ResultADDRTYPE: true,
				FlagSADDR:      s.Field == rules.Saddr,
				FlagDADDR:      s.Field == rules.Daddr,
			},
			compare(false, host32(unix.RTN_LOCAL)),
		}
	case rules.Protocol:
		return append(load(f, rules.L4Proto, 0), compare(false, []byte{s.Number}))
	case rules.EchoRequest:
		kind := &expr.Payload{DestRegister: register(0), Base: expr.PayloadBaseTransportHeader, Len: 1}
		proto, request := uint8(unix.IPPROTO_ICMP), uint8(8)
		if f == k8s.IPv6 {
			proto, request = unix.IPPROTO_ICMPV6, 128
		}
		return append(expressions(f, rules.Protocol{Number: proto}), kind, compare(false, []byte{request}))
	case rules.NoSYN:
		flags := &expr.Payload{
			DestRegister: register(0), Base: expr.PayloadBaseTransportHeader, Offset: tcpFlagsAt, Len: 1,
		}
		return []expr.Any{flags, mask([]byte{tcpSYN}, []byte{0}), compare(false, []byte{0})}
	case rules.State:
		return hasFlags(&expr.Ct{Key: expr.CtKeySTATE, Register: register(0)}, uint32(s.CtState))
	case rules.Translated:
		return hasFlags(&expr.Ct{Key: expr.CtKeySTATUS, Register: register(0)}, ctStatusDNAT)
	case rules.Answer:
		direction := []byte{0} // IP_CT_DIR_ORIGINAL
		if s.Is {
			direction[0] = 1
		}
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register(0)}, compare(false, direction),
		}
	case rules.Marked:
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)},
			mask(host32(1<<s.Bit), host32(0)),
			compare(false, host32(1<<s.Bit)),
		}

	case rules.In:
		list, _ := loadAll(f, s.Key)
		return append(list, &expr.Lookup{SourceRegister: register(0), SetName: s.Set})
	case rules.ClientIn:
		list, _ := loadAll(f, []rules.Field{rules.Saddr, rules.Daddr})
		list = slices.Insert(list, 1, expr.Any(mask(s.Mask.AsSlice(), s.Bits.AsSlice())))
		return append(list, &expr.Lookup{SourceRegister: register(0), SetName: s.Set})
	case rules.Lookup:
		list, _ := loadAll(f, s.Key)
		return append(list,
			&expr.Lookup{
				SourceRegister: register(0),
				SetName:        s.Map,
				IsDestRegSet:   true,
				DestRegister:   unix.NFT_REG_VERDICT,
			})
	case rules.DNAT:
		return dnat(f, s)
	}
	return actions(f, s)
}

// dnat returns the expressions that translate to an endpoint: the key, perhaps with a random number, finds
// it.
func dnat(f k8s.Family, s rules.DNAT) []expr.Any {
	list, next := loadAll(f, s.Key)
	if s.At.IsValid() {
		list = slices.Insert(list, 1, expr.Any(mask(f.Unspecified().AsSlice(), s.At.AsSlice())))
	}
	if s.Modulus > 0 {
		list = append(list,
			&expr.Numgen{
				Register: register(next),
				Modulus:  s.Modulus,
				Type:     unix.NFT_NG_RANDOM,
				Offset:   s.Offset,
			})
	}

	port := register(uint32(rules.Addr.Size(f) / 4))
	return append(list,
		&expr.Lookup{
			SourceRegister: register(0),
			SetName:        s.Map,
			IsDestRegSet:   true,
			DestRegister:   register(0),
		},
		&expr.NAT{
			Type:        expr.NATTypeDestNAT,
			Family:      uint32(family(f)),
			RegAddrMin:  register(0),
			RegProtoMin: port,
		})
}

// actions returns the expressions of a statement that changes the packet or ends the rule.
func actions(f k8s.Family, s rules.Statement) []expr.Any {
	switch s := s.(type) {
	case rules.RememberEndpoint:
		data := uint32(rules.Addr.Size(f) / 4)
		return append(append(append(load(f, rules.Saddr, 0), load(f, rules.Daddr, data)...),
			load(f, rules.Dport, 2*data)...),
			&expr.Dynset{
				SrcRegKey:  register(0),
				SrcRegData: register(data),
				SetName:    s.Map,
				Operation:  unix.NFT_DYNSET_OP_UPDATE,
			})
	case rules.SetMark:
		bit, set := uint32(1)<<s.Bit, uint32(0)
		if s.On {
			set = bit
		}
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)},
			mask(host32(^bit), host32(set)),
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0), SourceRegister: true},
		}
	case rules.Masquerade:
		if s.Max == 0 {
			return []expr.Any{&expr.Masq{FullyRandom: true}}
		}
		return []expr.Any{
			&expr.Immediate{Register: register(0), Data: port(s.Min)},
			&expr.Immediate{Register: register(1), Data: port(s.Max)},
			&expr.Masq{ToPorts: true, RegProtoMin: register(0), RegProtoMax: register(1)},
		}

	case rules.DNATTo:
		return []expr.Any{
			&expr.Immediate{Register: register(0), Data: s.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family(f)), RegAddrMin: register(0)},
		}
	case rules.Above:
		return []expr.Any{&expr.Limit{
			Type: expr.LimitTypePkts, Over: true,
			Rate: uint64(s.Rate), Unit: expr.LimitTimeSecond, Burst: s.Rate,
		}}

	case rules.Goto:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: s.Chain}}
	case rules.Jump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: s.Chain}}
	case rules.Counter:
		return []expr.Any{&expr.Counter{}}
	case rules.Return:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	case rules.FlowAdd:
		return []expr.Any{&expr.FlowOffload{Name: s.Flowtable + "\x00"}}
	case rules.Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case rules.Reject:
		if s.Reset {
			return []expr.Any{tcpReset{}}
		}
		code := uint8(icmpPortUnreachable)
		if f == k8s.IPv6 {
			code = icmp6PortUnreachable
		}
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
	}
	panic(fmt.Sprintf("unknown statement %T", s)) // the types are those of package rules
}

const (
	ctStatusDNAT         = 1 << 5 // IPS_DST_NAT
	icmpPortUnreachable  = 3      // ICMP_PORT_UNREACH
	icmp6PortUnreachable = 4      // ICMPV6_PORT_UNREACH
)

func host32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func port(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

// padName returns an interface's name; an exact one takes as many bytes as the kernel loads.
func padName(name string, prefix bool) []byte {
	if prefix {
		return []byte(name)
	}
	return append([]byte(name), make([]byte, max(0, unix.IFNAMSIZ-len(name)))...)
}

func compare(not bool, data []byte) *expr.Cmp {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Cmp{Op: op, Register: register(0), Data: data}
}

func mask(m, xor []byte) *expr.Bitwise {
	return &expr.Bitwise{
		SourceRegister: register(0),
		DestRegister:   register(0),
		Len:            uint32(len(m)),
		Mask:           m,
		Xor:            xor,
	}
}

// hasFlags matches values that have one of some flags.
func hasFlags(loader expr.Any, flags uint32) []expr.Any {
	return []expr.Any{loader, mask(host32(flags), host32(0)), compare(true, host32(0))}
}

// inPrefix matches the address in the first register.
func inPrefix(s rules.Prefix) (list []expr.Any) {
	a := s.Masked().Addr()
	if s.Bits() < a.BitLen() {
		ones := netip.PrefixFrom(allOnes(a), s.Bits()).Masked().Addr()
		list = append(list, mask(ones.AsSlice(), make([]byte, a.BitLen()/8)))
	}
	return append(list, compare(s.Not, a.AsSlice()))
}

func allOnes(like netip.Addr) netip.Addr {
	b := like.AsSlice()
	for i := range b {
		b[i] = 0xff
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// loadAll loads fields into consecutive registers, and returns the index of the next.
func loadAll(f k8s.Family, key []rules.Field) (list []expr.Any, next uint32) {
	for _, x := range key {
		list = append(list, load(f, x, next)...)
		switch x {
		case rules.Saddr, rules.Daddr, rules.OriginalDaddr:
			next += uint32(rules.Addr.Size(f) / 4)
		default:
			next++
		}
	}
	return list, next
}

// load loads a field into the register at an index.
func load(f k8s.Family, x rules.Field, at uint32) []expr.Any {
	source, destination := uint32(12), uint32(16) // in the IPv4 header
	if f == k8s.IPv6 {
		source, destination = 8, 24
	}

	size := uint32(rules.Addr.Size(f))
	r := register(at)
	var e expr.Any
	switch x {
	case rules.Saddr:
		e = &expr.Payload{DestRegister: r, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: size}
	case rules.Daddr:
		e = &expr.Payload{
			DestRegister: r,
			Base:         expr.PayloadBaseNetworkHeader,
			Offset:       destination,
			Len:          size,
		}
	case rules.L4Proto:
		e = &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r}
	case rules.Dport:
		e = &expr.Payload{DestRegister: r, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	case rules.OriginalDaddr:
		key := uint32(unix.NFT_CT_DST_IP)
		if f == k8s.IPv6 {
			key = unix.NFT_CT_DST_IP6
		}
		e = originalField{key: key, register: r}
	case rules.OriginalDport:
		e = originalField{key: unix.NFT_CT_PROTO_DST, register: r}
	}

	return []expr.Any{e}
}

const (
	ctOriginal = 0 // IP_CT_DIR_ORIGINAL
	ctReply    = 1 // IP_CT_DIR_REPLY
)

// originalField loads a value of a connection's first packet. expr.Ct has no direction with some keys, and
// one of the wrong size with the others.
type originalField struct {
	expr.Any // never called
	key      uint32
	register uint32
}

func (e originalField) bytes() []byte {
	var m message
	m.text(unix.NFTA_EXPR_NAME, "ct")
	data := m.nest(unix.NFTA_EXPR_DATA)
	m.number(unix.NFTA_CT_KEY, e.key)
	m.number(unix.NFTA_CT_DREG, e.register)
	m.attr(unix.NFTA_CT_DIRECTION, []byte{ctOriginal})
	m.endNest(data)
	return m.b
}

// tcpReset answers with a TCP reset. expr.Reject has a code in any case, which the kernel does not report of
// it.
type tcpReset struct{ expr.Any } // never called

func (tcpReset) bytes() []byte {
	var m message
	m.text(unix.NFTA_EXPR_NAME, "reject")
	data := m.nest(unix.NFTA_EXPR_DATA)
	m.number(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_TCP_RST)
	m.endNest(data)
	return m.b
}
