package live

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// packet is where a packet enters the bridge, and its Ethernet addresses, as ofproto/trace takes them.
type packet struct {
	inPort   string
	src, dst string // Ethernet
}

// defaultSourcePort stands for any port that the client may use: the first of the dynamic range (RFC 6335 §6).
const defaultSourcePort = 49152

// anyHash stands for the hash that the datapath would compute. Without one the walk ends where the packet is to be hashed;
// 0 is none.
const anyHash = 1

// flowText writes a packet in ovs-ofctl's flow syntax. The protocol comes first, because the switch requires the
// prerequisites of a field before the field.
func (p packet) flowText(q trace.Question) string {
	proto := strings.ToLower(string(q.Protocol))
	net, suffix := "nw", ""
	if k8s.FamilyOf(q.To.Addr()) == k8s.IPv6 {
		net, suffix = "ipv6", "6"
	}
	port := q.From.Port()
	if port == 0 {
		port = defaultSourcePort
	}
	text := fmt.Sprintf("%s%s,dp_hash=%#x,in_port=%s,dl_src=%s,dl_dst=%s,%s_src=%s,%s_dst=%s,nw_ttl=64,%s_src=%d,%s_dst=%d",
		proto, suffix, anyHash, p.inPort, p.src, p.dst, net, q.From.Addr(), net, q.To.Addr(), proto, port, proto, q.To.Port())
	if q.Protocol == "TCP" {
		text += fmt.Sprintf(",tcp_flags=%#x", flow.TCPSyn)
	}
	return text
}

// walk is the parsed output of ofproto/trace.
type walk struct {
	hits     []hit
	reg1     uint32         // as last set
	group    uint32         // the last one that the packet was handed to
	endpoint netip.AddrPort // where it was translated to; the zero AddrPort: it was not, or a group decides
	refused  bool           // it goes to the controller
	dropped  bool           // nothing is done with it in the end
}

// hit is a flow that the packet matched, or a table in which none matched.
type hit struct {
	table  int
	match  string // "" matches anything
	cookie uint64
	none   bool // no flow of the table matched
}

// The lines of `ovs-appctl ofproto/trace` (Open vSwitch: ofproto/ofproto-dpif-xlate.c, xlate_report_table;
// ofproto/ofproto-dpif-trace.c).
var (
	hitLine     = regexp.MustCompile(`^\s*(\d+)\. (?:(.*), )?priority (\d+)(?:, cookie (0x[0-9a-f]+))?$`)
	noMatchLine = regexp.MustCompile(`^\s*(\d+)\. No match`)
	groupLine   = regexp.MustCompile(`^\s*group:(\d+)$`)
	dnatLine    = regexp.MustCompile(`^\s*nat\(dst=(\S+)\)$`)
	setReg1Line = regexp.MustCompile(`^\s*set_field:0x([0-9a-f]+)(?:/0x([0-9a-f]+))?->reg1$`)
	reg1Field   = regexp.MustCompile(`[,:]\s*reg1=0x([0-9a-f]+)(?:,|$)`)
)

// parseWalk parses the output of ofproto/trace, up to a group that selects by the datapath's hash, because only a real packet
// determines which endpoint that is.
func parseWalk(text string, byHash func(group uint32) bool) (*walk, error) {
	w := &walk{}
	ended, decided := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if actions, ok := strings.CutPrefix(line, "Datapath actions: "); ok { // the end of a pass
			ended = true
			// After the translation, ofproto/trace treats every connection as not masqueraded, and table 30 drops
			// those that should have been.
			w.dropped = actions == "drop" && !w.endpoint.IsValid()
			w.refused = w.refused || strings.Contains(actions, "controller(")
			if decided {
				break
			}
		}
		if !decided {
			w.step(line)
			decided = w.group != 0 && byHash(w.group)
		}
	}
	if !ended || len(w.hits) == 0 {
		return nil, fmt.Errorf("cannot parse the output of ofproto/trace: %q", head(text))
	}
	return w, nil
}

// step reads a line within a pass.
func (w *walk) step(line string) {
	if m := hitLine.FindStringSubmatch(line); m != nil {
		h := hit{match: m[2]}
		h.table, _ = strconv.Atoi(m[1])
		h.cookie, _ = strconv.ParseUint(strings.TrimPrefix(m[4], "0x"), 16, 64)
		w.hits = append(w.hits, h)
	} else if m := noMatchLine.FindStringSubmatch(line); m != nil {
		h := hit{none: true}
		h.table, _ = strconv.Atoi(m[1])
		w.hits = append(w.hits, h)
	} else if m := groupLine.FindStringSubmatch(line); m != nil {
		id, _ := strconv.ParseUint(m[1], 10, 32)
		w.group = uint32(id)
	} else if m := dnatLine.FindStringSubmatch(line); m != nil {
		if at, ok := parseTarget(m[1]); ok {
			w.endpoint = at
		}
	} else if m := setReg1Line.FindStringSubmatch(line); m != nil {
		v, _ := strconv.ParseUint(m[1], 16, 32)
		mask := ^uint32(0)
		if m[2] != "" {
			n, _ := strconv.ParseUint(m[2], 16, 32)
			mask = uint32(n)
		}
		w.reg1 = w.reg1&^mask | uint32(v)&mask
	} else if strings.HasPrefix(line, "Flow: ") { // the beginning of a pass. Its end tells of less: what groups set is taken back.
		if m := reg1Field.FindStringSubmatch(line); m != nil {
			v, _ := strconv.ParseUint(m[1], 16, 32)
			w.reg1 = uint32(v)
		}
	}
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
