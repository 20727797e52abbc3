package live

import (
	"context"
	"net/netip"
	"regexp"
	"strings"

	"github.com/nkp-proxy/nkp/internal/trace"
)

var (
	outputAction = regexp.MustCompile(`^output:(\d+)$`)
	ethDstAction = regexp.MustCompile(`^set_field:(\S+)->eth_dst$`)
)

// Leaving has the switch trace (ofproto/trace, which sends and changes nothing) a packet that conntrack
// translates to an endpoint, and returns by which port and to which MAC it leaves the bridge: "by port 11 to
// MAC 02:…". "" means that it does not, or that it is not known: ofproto/trace is not asked about a packet
// that may loop, because it would never end (mayLoop).
func (s *Switch) Leaving(
	ctx context.Context,
	q trace.Question,
	r *trace.Result,
	endpoint netip.AddrPort,
) string {
	p, err := s.enter(q, r)
	if err != nil {
		return ""
	}
	d, err := s.Diff(ctx)
	if s.mayLoop(ctx, trace.NewLive(), s.sources(q, r, d), d, err) {
		return ""
	}
	walks, _, err := s.follow(ctx, p, q)
	if err != nil {
		return ""
	}
	for _, w := range walks {
		if ports := w.ports(); w.endpoint == endpoint && len(ports) > 0 {
			return w.leaving(p.dst, ports)
		}
	}
	return ""
}

// leaving returns how the packet leaves. mac is its destination when it came.
func (w *walk) leaving(mac string, ports []string) string {
	port := "the datapath's port " + strings.Join(ports, ", ")
	for _, h := range w.hits {
		for _, a := range h.actions {
			if m := ethDstAction.FindStringSubmatch(a); m != nil {
				mac = m[1]
			} else if m := outputAction.FindStringSubmatch(a); m != nil && len(ports) == 1 {
				port = "port " + m[1]
			}
		}
	}
	return "by " + port + " to MAC " + mac
}
