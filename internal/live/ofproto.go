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

// flowText writes a packet in ovs-ofctl's flow syntax. The protocol comes first: the switch wants what a field depends on
// before the field.
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
	text := fmt.Sprintf("%s%s,in_port=%s,dl_src=%s,dl_dst=%s,%s_src=%s,%s_dst=%s,nw_ttl=64,%s_src=%d,%s_dst=%d",
		proto, suffix, p.inPort, p.src, p.dst, net, q.From.Addr(), net, q.To.Addr(), proto, port, proto, q.To.Port())
	if q.Protocol == "TCP" {
		text += fmt.Sprintf(",tcp_flags=%#x", flow.TCPSyn)
	}
	return text
}

// walk is what ofproto/trace says, taken apart.
type walk struct {
	hits     []hit
	reg1     uint32         // in the end
	group    uint32         // the last one that the packet was handed to
	endpoint netip.AddrPort // where it was translated to; the zero AddrPort: it was not, or a group decides
	refused  bool           // it goes to the controller
	dropped  bool           // nothing is done with it in the end
}

// hit is a flow that the packet met.
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
	reg1Field   = regexp.MustCompile(`[,:]\s*reg1=0x([0-9a-f]+)(?:,|$)`)
)

// parseWalk reads the answer of ofproto/trace.
func parseWalk(text string) (*walk, error) {
	w := &walk{}
	ended := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := hitLine.FindStringSubmatch(line); m != nil {
			h := hit{match: m[2]}
			h.table, _ = strconv.Atoi(m[1])
			h.cookie, _ = strconv.ParseUint(strings.TrimPrefix(m[4], "0x"), 16, 64)
			w.hits = append(w.hits, h)
			continue
		}
		if m := noMatchLine.FindStringSubmatch(line); m != nil {
			h := hit{none: true}
			h.table, _ = strconv.Atoi(m[1])
			w.hits = append(w.hits, h)
			continue
		}
		if m := groupLine.FindStringSubmatch(line); m != nil {
			id, _ := strconv.ParseUint(m[1], 10, 32)
			w.group = uint32(id)
		}
		if m := dnatLine.FindStringSubmatch(line); m != nil {
			if at, ok := parseTarget(m[1]); ok {
				w.endpoint = at
			}
		}
		if strings.HasPrefix(line, "Flow: ") || strings.HasPrefix(line, "Final flow: ") {
			if m := reg1Field.FindStringSubmatch(line); m != nil {
				v, _ := strconv.ParseUint(m[1], 16, 32)
				w.reg1 = uint32(v)
			}
		}
		if actions, ok := strings.CutPrefix(line, "Datapath actions: "); ok {
			ended = true
			w.dropped = actions == "drop"
			w.refused = w.refused || strings.Contains(actions, "controller(")
		}
	}
	if !ended || len(w.hits) == 0 {
		return nil, fmt.Errorf("ofproto/trace says nothing that nkp understands: %q", head(text))
	}
	return w, nil
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
