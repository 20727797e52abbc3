package live

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// packet is where a packet enters the bridge, and its Ethernet addresses, as ofproto/trace takes them.
type packet struct {
	inPort   string
	src, dst string // Ethernet
	// flags are those of TCP; 0: SYN. mark is the ct_mark that conntrack lookups set.
	flags uint32
	mark  uint32
}

// defaultSourcePort stands for any port that the client may use: the first of the dynamic range (RFC 6335
// §6).
const defaultSourcePort = 49152

// flowText writes a packet in ovs-ofctl's flow syntax, with the hash that the datapath would compute. A hash
// of 0 is none: the walk would end where the packet is to be hashed. The protocol comes first, because the
// switch requires the prerequisites of a field before the field.
func (p packet) flowText(q trace.Question, hash uint32) string {
	proto := strings.ToLower(string(q.Protocol))
	net, suffix := "nw", ""
	if k8s.FamilyOf(q.To.Addr()) == k8s.IPv6 {
		net, suffix = "ipv6", "6"
	}
	port := cmp.Or(q.From.Port(), defaultSourcePort)
	text := fmt.Sprintf(
		"%s%s,dp_hash=%#x,in_port=%s,dl_src=%s,dl_dst=%s,%s_src=%s,%s_dst=%s,nw_ttl=64,%s_src=%d,%s_dst=%d",
		proto, suffix, hash, p.inPort, p.src, p.dst, net, q.From.Addr(), net, q.To.Addr(), proto, port, proto,
		q.To.Port())
	if q.Protocol == "TCP" {
		text += fmt.Sprintf(",tcp_flags=%#x", cmp.Or(p.flags, flow.TCPSyn))
	}
	if p.mark != 0 {
		text += fmt.Sprintf(",ct_mark=%#x", p.mark)
	}
	return text
}

// walk is the parsed output of ofproto/trace: the packet's path through the flow tables until it leaves the
// switch or is dropped.
type walk struct {
	hits     []hit
	reg1     uint32         // as last set
	group    uint32         // the Service's group that chose by the hash; 0: none did
	before   int            // hits up to group
	endpoint netip.AddrPort // where it was translated to; the zero AddrPort: it was not
	hashMask uint32         // bits of the datapath's hash that the path depends on
	states   []string       // ct_state that conntrack would set each time the packet comes back from it
	passed   bool           // nkp has passed the packet on to flows of others, of this bridge or another
	bridge   string         // the line with the bridge that the packet entered by
	forked   bool           // several copies take different paths, of which this is the last
	last     pass
}

// pass is what happens between two recirculations. The walk keeps the last one.
type pass struct {
	first   int    // index of its first hit
	actions string // of the datapath
	bucket  bool   // a group chose a bucket, of which no action was seen yet
	skipped string // ovs-vswitchd's words on an output that it has skipped, because of the port's state
	empty   uint32 // a group without a bucket to choose, or whose bucket does nothing
}

// hit is a flow that the packet matched, or a table in which none matched.
type hit struct {
	table    int
	match    string // "" matches anything
	priority int
	cookie   uint64
	actions  []string // without those of a group's bucket
	indent   int      // of the lines of actions; 0: none was read yet
	none     bool     // no flow of the table matched
	passed   bool     // nkp had passed the packet on
}

// The lines of `ovs-appctl ofproto/trace` (Open vSwitch: ofproto/ofproto-dpif-xlate.c, xlate_report_table;
// ofproto/ofproto-dpif-trace.c).
var (
	hitLine     = regexp.MustCompile(`^\s*(\d+)\. (?:(.*), )?priority (\d+)(?:, cookie (0x[0-9a-f]+))?$`)
	noMatchLine = regexp.MustCompile(`^\s*(\d+)\. No match`)
	groupLine   = regexp.MustCompile(`^\s*group:(\d+)$`)
	bucketLine  = regexp.MustCompile(`^\s*bucket \d+$`)
	dnatLine    = regexp.MustCompile(`^\s*nat\(dst=(\S+)\)$`)
	setDstLine  = regexp.MustCompile(`^\s*set_field:(\S+)->(?:ip|ipv6)_dst$`)
	setPortLine = regexp.MustCompile(`^\s*set_field:(\d+)->(?:tcp|udp)_dst$`)
	setReg1Line = regexp.MustCompile(`^\s*set_field:0x([0-9a-f]+)(?:/0x([0-9a-f]+))?->reg1$`)
	passLine    = regexp.MustCompile(`^\s*set_field:0x80000000/0x80000000->reg(?:[4-9]|1[0-5])$`)
	reg1Field   = regexp.MustCompile(`[,:]\s*reg1=0x([0-9a-f]+)(?:,|$)`)
	hashField   = regexp.MustCompile(`[,:]\s*dp_hash=0x[0-9a-f]+/0x([0-9a-f]+)(?:,|$)`)
)

// parseWalk parses the output of ofproto/trace. byHash reports whether a group is a Service's that chooses by
// the datapath's hash.
func parseWalk(text string, byHash func(group uint32) bool) (*walk, error) {
	w := &walk{}
	var last uint32 // group
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := groupLine.FindStringSubmatch(line); m != nil {
			id, _ := strconv.ParseUint(m[1], 10, 32)
			if last = uint32(id); w.group == 0 && byHash(last) {
				w.group, w.before = last, len(w.hits)
			}
		}
		w.step(line, last)
	}
	if w.last.actions == "" || len(w.hits) == 0 {
		return nil, fmt.Errorf("cannot parse the output of ofproto/trace: %q", head(text))
	}
	return w, nil
}

// step reads a line. group is the last one that the packet was handed to.
func (w *walk) step(line string, group uint32) {
	text := strings.TrimSpace(line)
	if m := hitLine.FindStringSubmatch(line); m != nil {
		h := hit{match: m[2], passed: w.passed}
		h.table, _ = strconv.Atoi(m[1])
		h.priority, _ = strconv.Atoi(m[3])
		h.cookie, _ = strconv.ParseUint(strings.TrimPrefix(m[4], "0x"), 16, 64)
		w.hits = append(w.hits, h)
		return
	} else if m := noMatchLine.FindStringSubmatch(line); m != nil {
		h := hit{none: true, passed: w.passed}
		h.table, _ = strconv.Atoi(m[1])
		w.hits = append(w.hits, h)
		return
	}

	switch actions, end := strings.CutPrefix(line, "Datapath actions: "); {
	case end:
		w.last.actions = actions
	case strings.HasPrefix(line, "recirc("): // the next pass begins
		if strings.Contains(line, "resume conntrack") {
			w.states = append(w.states, stateAfter(w.last.actions))
		}
		w.forked = w.forked || strings.Count(w.last.actions, "recirc(") > 1
		w.last = pass{first: len(w.hits)}
	case strings.HasPrefix(line, "Flow: "): // not "Final flow: ", which lacks what groups have set
		if m := reg1Field.FindStringSubmatch(line); m != nil && !w.passed {
			w.reg1 = hexadecimal(m[1])
		}
	case strings.HasPrefix(line, "Megaflow: "):
		if m := hashField.FindStringSubmatch(line); m != nil {
			w.hashMask |= hexadecimal(m[1])
		}
	case strings.HasPrefix(line, "bridge("):
		w.bridge = cmp.Or(w.bridge, line)
		w.passed = w.passed || line != w.bridge // by a patch port to flows that are none of nkp's
	case text == "-> no live bucket":
		w.last.empty = group
	case bucketLine.MatchString(line):
		w.last.bucket = true
	case text == "" || strings.HasPrefix(line, "Final flow: "):
		if w.last.bucket {
			w.last.empty, w.last.bucket = group, false
		}
	case strings.Contains(text, "skipping output") || strings.Contains(text, "Nonexistent output port"):
		w.last.skipped = strings.TrimLeft(text, "-> ")
	case strings.HasPrefix(text, "->"):
	default:
		w.last.bucket = false
		w.action(line, text)
	}
}

// action reads an action of the flow whose other actions are indented as much.
func (w *walk) action(line, text string) {
	indent := len(line) - len(strings.TrimLeft(line, " "))
	for i := len(w.hits) - 1; i >= w.last.first; i-- {
		if h := &w.hits[i]; h.indent == 0 || h.indent == indent {
			h.indent = indent
			if !strings.HasPrefix(text, "nat") { // part of the ct before
				h.actions = append(h.actions, text)
			}
			break
		}
	}

	lacksPort := w.endpoint.IsValid() && w.endpoint.Port() == 0
	if w.passed || passLine.MatchString(line) {
		w.passed = true // what follows is others' doing, and nkp's registers are 0
	} else if m := dnatLine.FindStringSubmatch(line); m != nil {
		if at, ok := parseTarget(m[1]); ok {
			w.endpoint = at
		}
	} else if m := setDstLine.FindStringSubmatch(line); m != nil && pipeline.ReadMark(w.reg1).Service {
		// sent on to another node
		if ip, err := netip.ParseAddr(m[1]); err == nil {
			w.endpoint = netip.AddrPortFrom(ip, 0)
		}
	} else if m := setPortLine.FindStringSubmatch(line); m != nil && lacksPort {
		port, _ := strconv.ParseUint(m[1], 10, 16)
		w.endpoint = netip.AddrPortFrom(w.endpoint.Addr(), uint16(port))
	} else if m := setReg1Line.FindStringSubmatch(line); m != nil {
		mask := ^uint32(0)
		if m[2] != "" {
			mask = hexadecimal(m[2])
		}
		w.reg1 = w.reg1&^mask | hexadecimal(m[1])&mask
	}
}

// stateAfter returns the ct_state of a new connection after datapath actions that send its packet through
// conntrack. By itself ofproto/trace leaves out which addresses were translated.
func stateAfter(actions string) string {
	state := "trk,new"
	if strings.Contains(actions, "nat(dst=") {
		state += ",dnat"
	}
	if strings.Contains(actions, "nat(src=") {
		state += ",snat"
	}
	return state
}

// refused reports whether the packet goes to the controller.
func (w *walk) refused() bool { return strings.Contains(w.last.actions, "controller(") }

// ports returns the datapath's numbers of the ports to which the packet goes in the end; none: it is dropped.
func (w *walk) ports() (list []string) {
	depth, from := 0, 0
	actions := w.last.actions + ","
	for i, c := range actions {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			word := actions[from:i]
			_, err := strconv.ParseUint(word, 10, 32)
			if err == nil || strings.HasPrefix(word, "tnl_push(") || strings.HasPrefix(word, "clone(") {
				list = append(list, word)
			}
			from = i + 1
		}
	}
	return list
}

// final returns the flow that decided what becomes of the packet in the end. The flows of table count decide
// nothing.
func (w *walk) final(count uint8) *hit {
	for i := len(w.hits) - 1; i > w.last.first; i-- {
		if w.hits[i].table != int(count) {
			return &w.hits[i]
		}
	}
	return &w.hits[min(w.last.first, len(w.hits)-1)]
}

// met reports whether the packet matched a flow.
func (w *walk) met(f *flow.Flow) bool {
	return slices.ContainsFunc(w.hits, func(h hit) bool {
		return !h.none && h.table == int(f.Table) && h.priority == int(f.Priority) && h.cookie == f.Cookie
	})
}

// normal reports whether the flow leaves the packet to the switch's MAC learning.
func (h *hit) normal() bool { return len(h.actions) > 0 && h.actions[len(h.actions)-1] == "NORMAL" }

// key returns the flow's table, priority and match in ovs-ofctl's syntax.
func (h *hit) key() string {
	text := fmt.Sprintf("table=%d,priority=%d", h.table, h.priority)
	if h.match != "" {
		text += "," + h.match
	}
	return text
}

// String returns the flow in ovs-ofctl's syntax.
func (h *hit) String() string {
	return fmt.Sprintf("cookie=%#x,%s,actions=%s", h.cookie, h.key(), strings.Join(h.actions, ","))
}

func hexadecimal(s string) uint32 {
	v, _ := strconv.ParseUint(s, 16, 32)
	return uint32(v)
}

// parseTarget reads where a translation leads: 10.0.0.1:80, or [fd00::1]:80.
func parseTarget(s string) (netip.AddrPort, bool) {
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at, true
	}
	ip, err := netip.ParseAddr(s)
	return netip.AddrPortFrom(ip, 0), err == nil
}

func head(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}
