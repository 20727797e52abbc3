//go:build linux

package netlink

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// followTries bounds how often a packet is followed when other programs, or nkp, change the tables meanwhile.
const followTries = 10

// maxEvaluations bounds the rules that are evaluated for one packet, each once for every random number. A
// Service with 65,536 endpoints takes 2 million.
const maxEvaluations = 4 << 20

var errTooMany = fmt.Errorf("it may take more than %d paths", maxEvaluations)

// Follow returns the paths that a packet can take through the tables of all owners, and its steps. It
// evaluates the installed rules; no packet is sent. Sets and elements are read one by one, so that it takes
// memory for those only that the packet meets. The error is errors.ErrUnsupported where the kernel has no
// nf_tables.
func (c *Conn) Follow(
	ctx context.Context, f k8s.Family, p rules.Packet,
) (paths []rules.Path, steps []string, err error) {
	for range followTries {
		before, err := c.generation()
		if errors.Is(err, unix.EINVAL) { // Linux: net/netfilter/nfnetlink.c, nfnetlink_rcv_msg
			return nil, nil, fmt.Errorf("the kernel has no nf_tables: %w", errors.ErrUnsupported)
		} else if err != nil {
			return nil, nil, err
		}

		w := follower{
			ruleset:  newRuleset(ctx, c, f),
			family:   f,
			packet:   &p,
			protocol: k8s.ProtocolNumbers[p.Protocol],
			known:    map[rules.Path]bool{},
			seen:     map[stepID]bool{},
			service:  map[string]rules.SetID{},
		}
		for id := range rules.Sets {
			w.service[rules.Sets[id].Name] = rules.SetID(id)
		}

		w.follow()
		if w.err != nil && !errors.Is(w.err, unix.ENOENT) { // a chain or set is gone
			return nil, nil, fmt.Errorf("follow the packet through nf_tables: %w", w.err)
		}
		if after, err := c.generation(); err != nil || after == before && w.err == nil {
			return w.paths, w.steps, err
		}
	}
	return nil, nil, ErrInterrupted
}

// follower follows one packet.
type follower struct {
	*ruleset
	family     k8s.Family
	packet     *rules.Packet
	protocol   byte
	service    map[string]rules.SetID // the sets of nkp's table by name
	hook       uint32                 // that the packet passes
	loopedBack bool                   // what the node sends to itself has come in again
	// connection tracking has not restored the destination of an answer yet
	notRestored bool
	evaluations int

	paths []rules.Path
	known map[rules.Path]bool // the same
	steps []string
	seen  map[stepID]bool // steps
}

// state is what rules change of a packet. It is comparable, so that paths that meet again are followed once.
type state struct {
	to          netip.AddrPort
	translated  bool
	masquerade  bool
	mark        uint32
	markUnknown bool // the mark is not known
	doubt       bool // see rules.Path
}

func (w *follower) follow() {
	states := []state{{to: w.packet.To, translated: w.packet.Reply != nil}}
	first := uint32(unix.NF_INET_PRE_ROUTING)
	if w.packet.FromNode {
		first = unix.NF_INET_LOCAL_OUT
	}
	states = w.pass(first, states)

	var local, others []state
	for _, s := range states {
		if w.packet.IsLocal(s.to.Addr()) {
			local = append(local, s)
		} else {
			others = append(others, s)
		}
	}

	if !w.packet.FromNode {
		others = w.pass(unix.NF_INET_FORWARD, others)
	}
	others = w.pass(unix.NF_INET_POST_ROUTING, others)
	if w.packet.FromNode {
		local = w.pass(unix.NF_INET_POST_ROUTING, local)
		w.loopedBack = true
		local = w.pass(unix.NF_INET_PRE_ROUTING, local)
	}
	local = w.pass(unix.NF_INET_LOCAL_IN, local)

	for _, s := range append(others, local...) {
		w.end(s, rules.Accepted, "")
	}
}

// ends records that a chain ends a packet's path.
func (w *follower) ends(o object, s state, f rules.Verdict, why string) {
	w.step(o, why, "")
	w.end(s, f, o.String())
}

// end records where a packet's path ends.
func (w *follower) end(s state, f rules.Verdict, at string) {
	path := rules.Path{Verdict: f, Masquerade: s.masquerade, Doubt: s.doubt, At: at}
	if s.translated {
		path.Endpoint = s.to
	}
	if !w.known[path] {
		w.known[path] = true
		w.paths = append(w.paths, path)
	}
}

// pass returns the states of packets that pass all base chains of a hook.
func (w *follower) pass(hook uint32, in []state) []state {
	w.hook = hook
	untranslated := w.packet.IPTables != nil && !w.loopedBack &&
		(hook == unix.NF_INET_PRE_ROUTING || hook == unix.NF_INET_LOCAL_OUT)
	for i := range w.bases {
		b := &w.bases[i]
		if b.hook != hook || w.packet.IPTables != nil && b.ofIPTables() ||
			b.nat && (hook == unix.NF_INET_LOCAL_IN || w.loopedBack || w.packet.Reply != nil) {
			continue // no chain for translated sources, and a connection passes those for destinations once
		}
		if untranslated && b.priority >= priorityDNAT {
			in, untranslated = w.translated(in), false
		}
		w.notRestored = w.packet.Reply != nil && w.packet.Reply.Masquerade &&
			hook == unix.NF_INET_PRE_ROUTING && b.priority < priorityDNAT

		var out stateSet
		for _, s := range in {
			if b.nat && (s.translated && hook != unix.NF_INET_POST_ROUTING || s.masquerade) {
				out.add(s)
				continue
			}
			accepted, returned := w.chain(b.object, s, 0)
			out.add(accepted...)
			for _, r := range returned {
				if b.drops {
					w.ends(b.object, r, rules.Dropped, "policy drop")
				} else {
					out.add(r)
				}
			}
		}

		in = out.list
	}

	if untranslated {
		in = w.translated(in)
	}
	return in
}

// ofIPTables reports whether a base chain is one of iptables' table nat.
func (b *baseChain) ofIPTables() bool {
	return b.nat && b.table.name == "nat" && b.family != unix.NFPROTO_INET
}

// translated returns the states of packets after iptables' table nat.
func (w *follower) translated(in []state) []state {
	paths := w.packet.IPTables.Paths
	if len(paths) == 0 {
		return in
	}

	var out stateSet
	for _, s := range in {
		if s.translated {
			out.add(s)
			continue
		}
		for i := range paths {
			one := s
			one.to, one.translated, one.masquerade = paths[i].Endpoint, true, paths[i].Masquerade
			if one.masquerade {
				one.mark |= w.packet.IPTables.Mark
			}
			out.add(one)
		}
	}
	return out.list
}

// stateSet is a list of states without duplicates.
type stateSet struct {
	list []state
	has  map[state]bool
}

func (l *stateSet) add(all ...state) {
	for _, s := range all {
		if l.has[s] {
			continue
		}
		if l.has == nil {
			l.has = map[state]bool{}
		}
		l.has[s] = true
		l.list = append(l.list, s)
	}
}

// maxDepth is how deep the kernel lets chains call each other (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

// chain returns the packets that a chain accepts, and those that leave it at its end.
func (w *follower) chain(o object, s state, depth int) (accepted, returned []state) {
	if depth > maxDepth {
		return nil, nil
	}

	var accept, leave stateSet
	states := []state{s}
	chain := w.ruleset.chain(o)
	for i, r := range chain {
		if i > 0 && len(states) == 1 && states[0] == s && slices.EqualFunc(r, chain[i-1], expression.equal) {
			continue // it adds no path to those of the rule before: another random draw
		}

		var next stateSet
		for _, s := range states {
			w.evaluate(o, r, registers{}, s, func(s state, v verdict) {
				switch v.code {
				case verdictContinue:
					next.add(s)
				case verdictReturn:
					leave.add(s)
				case verdictAccept:
					accept.add(s)
				case verdictJump, verdictGoto:
					to := object{o.table, v.chain}
					word := "jump "
					if v.code == verdictGoto {
						word = "goto "
					}
					w.step(o, word, v.chain)
					passed, back := w.chain(to, s, depth+1)
					accept.add(passed...)
					if v.code == verdictJump {
						next.add(back...)
					} else {
						leave.add(back...)
					}
				case verdictDrop:
					w.ends(o, s, rules.Dropped, "drop")
				case verdictReject:
					w.ends(o, s, rules.Rejected, "reject")
				default:
					w.ends(o, s, rules.Unknown, "an expression that nkp does not evaluate")
				}
			})
		}

		if states = next.list; len(states) == 0 {
			break
		}
	}

	leave.add(states...)
	return accept.list, leave.list
}

func (o object) String() string {
	return "table " + map[byte]string{
		unix.NFPROTO_INET:   "inet",
		unix.NFPROTO_IPV4:   "ip",
		unix.NFPROTO_IPV6:   "ip6",
		unix.NFPROTO_NETDEV: "netdev",
	}[o.family] + " " + o.table.name + ", chain " + o.name
}

// stepID identifies a step: what a chain does with the packet, and to which chain or by which element.
type stepID struct {
	object
	what, with string
}

// step notes what a chain does with the packet, once.
func (w *follower) step(o object, what, with string) {
	if id := (stepID{o, what, with}); !w.seen[id] {
		w.seen[id] = true
		w.steps = append(w.steps, o.String()+": "+what+with)
	}
}

// priorityDNAT is where the kernel translates destinations (NF_IP_PRI_NAT_DST).
const priorityDNAT = -100

// header returns the bytes of the packet's header from a base, and a bit for each that is known.
func (w *follower) header(base uint32, to netip.AddrPort) (b []byte, known uint64) {
	put := func(at int, data []byte) {
		copy(b[at:], data)
		known |= bits(at, len(data))
	}

	from := w.packet.From
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && w.family == k8s.IPv4:
		b = make([]byte, 20)
		put(9, []byte{w.protocol})
		put(12, from.Addr().AsSlice())
		if !w.notRestored {
			put(16, to.Addr().AsSlice())
		}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		b = make([]byte, 40)
		put(6, []byte{w.protocol})
		put(8, from.Addr().AsSlice())
		if !w.notRestored {
			put(24, to.Addr().AsSlice())
		}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		b = make([]byte, 20)
		put(0, port(from.Port()))
		put(2, port(to.Port()))
		switch {
		case w.packet.Protocol != "TCP":
		case w.packet.Reply == nil:
			put(tcpFlagsAt, []byte{tcpSYN})
		default:
			put(tcpFlagsAt, []byte{tcpSYN | tcpACK})
		}
	}

	return b, known
}

// The flags in TCP's header, and at which byte they are (RFC 9293 section 3.1).
const (
	tcpFlagsAt = 13

	tcpSYN = 1 << 1
	tcpACK = 1 << 4
)

// OfDevice returns the base chains that see a device's packets, in the families netdev and inet (hook
// ingress): Follow does not pass them.
func (c *Conn) OfDevice(device string) (chains []string, err error) {
	for _, fam := range []byte{unix.NFPROTO_NETDEV, unix.NFPROTO_INET} {
		var list []string
		err = c.objects(unix.NFT_MSG_GETCHAIN, fam, func(*message) {}, func() { list = nil },
			func(b []byte, note func(...[]byte)) {
				note(attribute(b, unix.NFTA_CHAIN_HANDLE))
				if slices.Contains(hookDevices(attribute(b, unix.NFTA_CHAIN_HOOK)), device) {
					o := object{
						table{fam, text(attribute(b, unix.NFTA_CHAIN_TABLE))},
						text(attribute(b, unix.NFTA_CHAIN_NAME)),
					}
					list = append(list, o.String())
				}
			})
		if chains = append(chains, list...); err != nil {
			break
		}
	}
	return chains, err
}

// hookDevices returns the devices that a base chain is bound to; none: it sees the packets of all, or is no
// base chain.
func hookDevices(hook []byte) (devices []string) {
	const several = 4 // NFTA_HOOK_DEVS
	if d := attribute(hook, unix.NFTA_HOOK_DEV); d != nil {
		devices = append(devices, text(d))
	}
	for _, d := range attributes(attribute(hook, several)) {
		devices = append(devices, text(d))
	}
	return devices
}
