//go:build linux

package netlink

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// verdict is what a rule decides. Codes are the kernel's (NF_DROP and NFT_CONTINUE in nf_tables.h), and two
// of our own.
type verdict struct {
	code  uint32
	chain string
}

const (
	verdictDrop     = 0
	verdictAccept   = 1
	verdictContinue = 0xffffffff
	verdictReturn   = 0xfffffffb
	verdictReject   = 1 << 16
	verdictUnknown  = 1<<16 + 1
)

// maxRandom bounds the random numbers that are tried.
const maxRandom = rules.MaxSlots

// evaluate evaluates a rule from a list of its expressions on, as the kernel would. It calls emit for each
// outcome: verdictContinue leads to the next rule. It sends nothing and changes nothing in the kernel.
func (w *follower) evaluate(o object, list []expression, g registers, s state, emit func(state, verdict)) {
	if w.evaluations++; w.evaluations > maxEvaluations {
		w.fail(errTooMany)
	}
	if w.err != nil {
		return
	}

	next := verdict{code: verdictContinue}
	for i := range list {
		e := &list[i]
		rest := list[i+1:]
		t := yes
		switch e.name {
		case "numgen":
			register, modulus := e.number(unix.NFTA_NG_DREG), e.number(unix.NFTA_NG_MODULUS)
			from := e.number(unix.NFTA_NG_OFFSET)
			if modulus > maxRandom {
				g.forget(register, 4)
				continue
			}
			for n := range modulus {
				g.load(register, host32(from+n), ^uint64(0))
				w.evaluate(o, rest, g, s, emit)
			}
			return
		case "lookup":
			var v *verdict
			if t, v = w.lookup(o, e, &g); v != nil {
				if t == maybe {
					s.doubt = true
					emit(s, next)
				}
				emit(s, *v)
				return
			}
		case "immediate":
			if e.number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
				emit(s, verdictOf(attribute(e.data, unix.NFTA_IMMEDIATE_DATA)))
				return
			}
			g.load(e.number(unix.NFTA_IMMEDIATE_DREG), e.value(unix.NFTA_IMMEDIATE_DATA), ^uint64(0))
		case "nat":
			emit(s, w.translate(e, &g, &s))
			return
		case "masq":
			s.masquerade = true
			emit(s, verdict{code: verdictAccept})
			return
		case "reject":
			emit(s, verdict{code: verdictReject})
			return
		case "queue", "redir", "tproxy", "synproxy", "fwd", "notrack":
			// Of these, notrack keeps the connection from being translated.
			s.doubt = true
			emit(s, verdict{code: verdictUnknown})
			return
		case "target":
			if v := target(text(attribute(e.data, unix.NFTA_TARGET_NAME)), &s); v.code != verdictContinue {
				emit(s, v)
				return
			}
		default:
			t = w.matches(e, &g, &s)
		}

		switch t {
		case no:
			emit(s, next)
			return
		case maybe:
			s.doubt = true
			emit(s, next)
		case timeDependent:
			emit(s, next)
		}
	}
	emit(s, next)
}

// matches evaluates an expression that neither ends the rule nor draws a random number: it reports whether
// the rule goes on, and loads registers.
func (w *follower) matches(e *expression, g *registers, s *state) truth {
	switch e.name {
	case "counter", "log", "last", "flow_offload":
	case "dynset":
		return dynset(e)
	case "payload":
		return w.payload(e, g, s.to)
	case "meta":
		w.meta(e, g, s)
	case "ct":
		w.ct(e, g, s)
	case "fib":
		w.fib(e, g, s.to.Addr())
	case "cmp":
		return w.compare(e, g)
	case "range":
		return inRange(e, g)
	case "bitwise":
		bitwise(e, g)
	case "match":
		return w.match(e, *s)
	default: // it may match, and load anything
		*g = registers{}
		return maybe
	}

	return yes
}

// dynset matches where an element is added or updated, unless what the element holds decides, such as a limit
// for each client.
func dynset(e *expression) truth {
	const remove, single, several = 2, 7, 10 // NFT_DYNSET_OP_DELETE, NFTA_DYNSET_EXPR and _EXPRESSIONS
	if e.number(unix.NFTA_DYNSET_OP) == remove {
		return maybe
	}
	held := [][]byte{attribute(e.data, single)}
	for _, item := range attributes(attribute(e.data, several)) {
		held = append(held, item)
	}
	for _, b := range held {
		if b != nil && text(attribute(b, unix.NFTA_EXPR_NAME)) != "counter" {
			return maybe
		}
	}
	return yes
}

// payload loads a part of the packet. One that writes it is not evaluated.
func (w *follower) payload(e *expression, g *registers, to netip.AddrPort) truth {
	if e.has(unix.NFTA_PAYLOAD_SREG) {
		return maybe
	}
	from, n := int(e.number(unix.NFTA_PAYLOAD_OFFSET)), int(e.number(unix.NFTA_PAYLOAD_LEN))
	register := e.number(unix.NFTA_PAYLOAD_DREG)
	b, known := w.header(e.number(unix.NFTA_PAYLOAD_BASE), to)
	if from+n > len(b) {
		g.forget(register, n)
		return yes
	}
	g.load(register, b[from:from+n], known>>from)
	return yes
}

func (w *follower) meta(e *expression, g *registers, s *state) {
	key, register := e.number(unix.NFTA_META_KEY), e.number(unix.NFTA_META_DREG)
	if e.has(unix.NFTA_META_SREG) {
		if key == unix.NFT_META_MARK {
			b, known := g.read(e.number(unix.NFTA_META_SREG), 4)
			s.mark, s.markUnknown = binary.NativeEndian.Uint32(b), !known
			if !known {
				s.mark = 0
			}
		}
		return
	}

	load := func(b []byte) { g.load(register, b, ^uint64(0)) }
	switch key {
	case unix.NFT_META_L4PROTO:
		load([]byte{w.protocol})
	case unix.NFT_META_NFPROTO:
		load([]byte{family(w.family)})
	case unix.NFT_META_PROTOCOL:
		if w.family == k8s.IPv6 {
			load(port(unix.ETH_P_IPV6))
		} else {
			load(port(unix.ETH_P_IP))
		}
	case unix.NFT_META_MARK:
		if load(host32(s.mark)); s.markUnknown {
			g.forget(register, 4)
		}
	case unix.NFT_META_IIFNAME:
		w.device(register, g)
	case unix.NFT_META_IIF:
		w.deviceNumber(register, g, w.loopedBack, w.packet.FromNode)
	case unix.NFT_META_OIFNAME:
		switch lo, none := w.leaves(s); {
		case lo:
			load(padName("lo", false))
		case none:
			load(padName("", false))
		default:
			g.forgetDevice(register, unix.IFNAMSIZ, "lo")
		}
	case unix.NFT_META_OIF:
		lo, none := w.leaves(s)
		w.deviceNumber(register, g, lo, none)
	default:
		g.forget(register, 4)
	}
}

// device loads the name of the device by which the packet came in.
func (w *follower) device(register uint32, g *registers) {
	name, wild := strings.CutSuffix(w.packet.Device, "*")
	known := ^uint64(0)
	switch {
	case w.loopedBack:
		name = "lo"
	case w.packet.FromNode: // it has come in by none
		name = ""
	case wild:
		known = bits(0, len(name))
	case name == "":
		known = 0
	}
	g.load(register, padName(name, false), known)
	if known == 0 {
		g.forgetDevice(register, unix.IFNAMSIZ, append([]string{"lo"}, w.packet.NotDevices...)...)
	}
}

// loopback is the number of the device lo in every network namespace (LOOPBACK_IFINDEX).
const loopback = 1

// deviceNumber loads the number of a device: lo, none, or one that is not known, but is not lo.
func (w *follower) deviceNumber(register uint32, g *registers, lo, none bool) {
	switch {
	case lo:
		g.load(register, host32(loopback), ^uint64(0))
	case none:
		g.load(register, host32(0), ^uint64(0))
	default:
		g.forgetDevice(register, 4, "lo")
	}
}

// leaves reports whether the packet leaves by lo, and whether it leaves by no device, in the hook that it
// passes. Hook output has the device of the route to where the packet was sent, also after a translation.
func (w *follower) leaves(s *state) (lo, none bool) {
	switch w.hook {
	case unix.NF_INET_LOCAL_OUT:
		return w.packet.IsLocal(w.packet.To.Addr()), false
	case unix.NF_INET_POST_ROUTING:
		return w.packet.FromNode && w.packet.IsLocal(s.to.Addr()), false
	}
	return false, w.hook != unix.NF_INET_FORWARD
}

// ct loads what connection tracking knows of the packet.
func (w *follower) ct(e *expression, g *registers, s *state) {
	if e.has(unix.NFTA_CT_SREG) {
		return
	}

	register := e.number(unix.NFTA_CT_DREG)
	load := func(b []byte) { g.load(register, b, ^uint64(0)) }
	original := !e.has(unix.NFTA_CT_DIRECTION) || attribute(e.data, unix.NFTA_CT_DIRECTION)[0] == ctOriginal

	state, direction, client, service := rules.New, byte(ctOriginal), w.packet.From, w.packet.To
	if a := w.packet.Reply; a != nil {
		state, direction, client, service = rules.Established, ctReply, w.packet.To, a.Service
	}

	switch key := e.number(unix.NFTA_CT_KEY); {
	case key == unix.NFT_CT_STATE:
		load(host32(uint32(state)))
	case key == unix.NFT_CT_STATUS:
		status := uint32(0)
		if s.translated {
			status = ctStatusDNAT
		}
		load(host32(status))
	case key == unix.NFT_CT_DIRECTION:
		load([]byte{direction})
	case original && (key == unix.NFT_CT_DST || key == unix.NFT_CT_DST_IP || key == unix.NFT_CT_DST_IP6):
		load(service.Addr().AsSlice())
	case original && (key == unix.NFT_CT_SRC || key == unix.NFT_CT_SRC_IP || key == unix.NFT_CT_SRC_IP6):
		load(client.Addr().AsSlice())
	case original && key == unix.NFT_CT_PROTO_DST:
		load(port(service.Port()))
	default:
		g.forget(register, 16)
	}
}

// fib loads the type of an address.
func (w *follower) fib(e *expression, g *registers, to netip.Addr) {
	register, flags := e.number(unix.NFTA_FIB_DREG), e.number(unix.NFTA_FIB_FLAGS)
	if e.number(unix.NFTA_FIB_RESULT) != unix.NFT_FIB_RESULT_ADDRTYPE ||
		flags&(unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_OIF) != 0 {
		g.forget(register, unix.IFNAMSIZ)
		return
	}
	a := to
	if flags&unix.NFTA_FIB_F_SADDR != 0 {
		a = w.packet.From.Addr()
	}
	kind := uint32(unix.RTN_UNICAST)
	switch {
	case w.packet.IsLocal(a):
		kind = unix.RTN_LOCAL
	case a.IsMulticast():
		kind = unix.RTN_MULTICAST
	}
	g.load(register, host32(kind), ^uint64(0))
}

func (w *follower) compare(e *expression, g *registers) truth {
	register, op := e.number(unix.NFTA_CMP_SREG), e.number(unix.NFTA_CMP_OP)
	data := e.value(unix.NFTA_CMP_DATA)
	if op == unix.NFT_CMP_EQ || op == unix.NFT_CMP_NEQ {
		t := g.equals(register, data)
		if t == maybe && g.device == offset(register)+1 && g.otherDevice(data) {
			t = no
		}
		return t.not(op == unix.NFT_CMP_NEQ)
	}
	order, ok := g.order(register, data)
	switch {
	case !ok:
		return maybe
	case op == unix.NFT_CMP_LT:
		return truthOf(order < 0)
	case op == unix.NFT_CMP_LTE:
		return truthOf(order <= 0)
	case op == unix.NFT_CMP_GT:
		return truthOf(order > 0)
	}
	return truthOf(order >= 0)
}

func inRange(e *expression, g *registers) truth {
	register := e.number(unix.NFTA_RANGE_SREG)
	low, ok := g.order(register, e.value(unix.NFTA_RANGE_FROM_DATA))
	high, _ := g.order(register, e.value(unix.NFTA_RANGE_TO_DATA))
	if !ok {
		return maybe
	}
	return truthOf(low >= 0 && high <= 0).not(e.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
}

// bitwise masks a register. Bytes that the mask clears are known.
func bitwise(e *expression, g *registers) {
	const opAttribute, opMaskXor = 6, 0 // NFTA_BITWISE_OP, NFT_BITWISE_BOOL
	n := int(e.number(unix.NFTA_BITWISE_LEN))
	mask, xor := e.value(unix.NFTA_BITWISE_MASK), e.value(unix.NFTA_BITWISE_XOR)
	to := e.number(unix.NFTA_BITWISE_DREG)
	if e.number(opAttribute) != opMaskXor || len(mask) != n || len(xor) != n {
		g.forget(to, n)
		return
	}
	at := offset(e.number(unix.NFTA_BITWISE_SREG))
	value, known := make([]byte, n), uint64(0)
	for i := range min(n, len(g.b)-at) {
		value[i] = g.b[at+i]&mask[i] ^ xor[i]
		if mask[i] == 0 || g.known&(1<<(at+i)) != 0 {
			known |= 1 << i
		}
	}
	g.load(to, value, known)
}

// lookup looks a key up in a set or map. v is the verdict that a verdict map has for it; nil: the rule goes
// on as t says.
func (w *follower) lookup(o object, e *expression, g *registers) (t truth, v *verdict) {
	name := object{o.table, text(attribute(e.data, unix.NFTA_LOOKUP_SET))}
	set := w.ruleset.set(name)
	key, known := g.read(e.number(unix.NFTA_LOOKUP_SREG), set.keyLen)
	isMap, to := e.has(unix.NFTA_LOOKUP_DREG), e.number(unix.NFTA_LOOKUP_DREG)

	switch {
	case !known && isMap && set.verdicts:
		return maybe, &verdict{code: verdictUnknown}
	case !known:
		if isMap {
			*g = registers{}
		}
		return maybe, nil
	}

	found := w.element(name, string(key))
	switch {
	case !isMap:
		return truthOf(found != nil).not(e.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0), nil
	case found == nil:
		return no, nil
	case set.verdicts:
		if id, ours := w.service[name.name]; ours && o.table.name == rules.TableName {
			r := rules.Ref{Set: id, Key: string(dataValue(found, unix.NFTA_SET_ELEM_KEY))}
			w.step(o, "element of "+name.name+": ",
				r.Text(w.family, rules.Value{Data: elementData(&rules.Sets[id], found)}))
		}
		v := verdictOf(attribute(found, unix.NFTA_SET_ELEM_DATA))
		return yes, &v
	}

	data := dataValue(found, unix.NFTA_SET_ELEM_DATA)
	g.load(to, data, ^uint64(0))
	if set.expires { // a client that session affinity remembers, until then
		w.step(o, "element of "+name.name+" until it expires: ",
			strings.Join(rules.Parts(w.family, []rules.Type{rules.Addr, rules.Port}, string(data)), " . "))
		return timeDependent, nil
	}
	return yes, nil
}

// verdictOf reads a verdict in data.
func verdictOf(data []byte) verdict {
	v := attribute(data, unix.NFTA_DATA_VERDICT)
	return verdict{number(attribute(v, unix.NFTA_VERDICT_CODE)), text(attribute(v, unix.NFTA_VERDICT_CHAIN))}
}

// translate has a connection translated, and returns the verdict.
func (w *follower) translate(e *expression, g *registers, s *state) verdict {
	const source = 0 // NFT_NAT_SNAT
	accept := verdict{code: verdictAccept}
	if e.number(unix.NFTA_NAT_TYPE) == source {
		s.masquerade = true
		return accept
	}
	to, size := w.packet.To, rules.Addr.Size(w.family)
	addr, known := s.to.Addr().AsSlice(), true
	if e.has(unix.NFTA_NAT_REG_ADDR_MIN) {
		addr, known = g.read(e.number(unix.NFTA_NAT_REG_ADDR_MIN), size)
	}
	number := port(to.Port())
	if known && e.has(unix.NFTA_NAT_REG_PROTO_MIN) {
		number, known = g.read(e.number(unix.NFTA_NAT_REG_PROTO_MIN), 2)
	}
	a, ok := netip.AddrFromSlice(addr)
	if !known || !ok {
		s.doubt = true
		return verdict{code: verdictUnknown}
	}
	s.to, s.translated = netip.AddrPortFrom(a, binary.BigEndian.Uint16(number)), true
	return accept
}

// match evaluates a match of iptables. Only the state of a connection and comments are known.
func (w *follower) match(e *expression, s state) truth {
	// struct xt_conntrack_mtinfo3 in xt_conntrack.h of the kernel
	const revision, flagsAt, invertAt, stateAt = 3, 146, 148, 150
	// XT_CONNTRACK_STATE, _STATE_BIT(IP_CT_ESTABLISHED and _NEW), _STATE_DNAT
	const stateFlag, establishedBit, newBit, dnatBit = 1, 1 << 1, 1 << 3, 1 << 7
	info := attribute(e.data, unix.NFTA_MATCH_INFO)
	switch text(attribute(e.data, unix.NFTA_MATCH_NAME)) {
	case "comment":
		return yes
	case "conntrack":
		if e.number(unix.NFTA_MATCH_REV) != revision || len(info) < stateAt+2 ||
			binary.NativeEndian.Uint16(info[flagsAt:]) != stateFlag {
			return maybe
		}
		states, now := binary.NativeEndian.Uint16(info[stateAt:]), uint16(newBit)
		if w.packet.Reply != nil {
			now = establishedBit
		}
		return truthOf(states&now != 0 || s.translated && states&dnatBit != 0).
			not(binary.NativeEndian.Uint16(info[invertAt:])&stateFlag != 0)
	}
	return maybe
}

// target evaluates a target of iptables, by the list in iptables-extensions(8).
func target(name string, s *state) verdict {
	switch name {
	case "REJECT":
		return verdict{code: verdictReject}
	case "MASQUERADE", "SNAT":
		s.masquerade = true
		return verdict{code: verdictAccept}
	case "MARK", "CONNMARK", "HMARK":
		s.mark, s.markUnknown = 0, true
		return verdict{code: verdictContinue}
	case "LOG", "NFLOG", "AUDIT", "TRACE", "CLASSIFY", "TCPMSS", "TCPOPTSTRIP", "DSCP", "TOS", "ECN",
		"TTL", "HL", "CHECKSUM", "SECMARK", "CONNSECMARK", "SET", "RATEEST", "IDLETIMER", "LED", "TEE":
		return verdict{code: verdictContinue}
	}
	s.doubt = true // it translates, keeps from being tracked (CT), or is not known
	return verdict{code: verdictUnknown}
}
