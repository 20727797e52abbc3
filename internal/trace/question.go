package trace

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// Question is the first packet of a connection.
type Question struct {
	From     netip.AddrPort // port 0: any
	To       netip.AddrPort
	Protocol k8s.Protocol
	// In is the port of the bridge, or the interface, by which it comes; "": as its source address suggests.
	In string
}

// String returns the packet in one line.
func (q Question) String() string {
	return fmt.Sprintf("%s from %s to %s", q.Protocol, q.source(), q.To)
}

// source returns the source in the form that ParseSource reads.
func (q Question) source() string {
	if q.From.Port() == 0 {
		return q.From.Addr().String()
	}
	return q.From.String()
}

// ParseProtocol reads tcp, udp or sctp, in any case; "" is TCP.
func ParseProtocol(s string) (k8s.Protocol, error) {
	switch p := k8s.Protocol(strings.ToUpper(s)); p {
	case "":
		return v1.ProtocolTCP, nil
	case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
		return p, nil
	}
	return "", fmt.Errorf("%q is not tcp, udp or sctp", s)
}

// ParseSource reads IP or IP:PORT, an IPv6 address with port in brackets.
func ParseSource(s string) (netip.AddrPort, error) {
	if ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")); err == nil {
		return clean(netip.AddrPortFrom(ip, 0), s)
	}
	at, err := netip.ParseAddrPort(s)
	if err != nil {
		return at, fmt.Errorf("%q is neither an address such as 10.0.0.5, nor address and port such as "+
			"10.0.0.5:40000 or [fd00::5]:40000, nor a name such as pod/default/client", s)
	}
	return clean(at, s)
}

// ParseDestination reads IP:PORT, an IPv6 address in brackets.
func ParseDestination(s string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(s)
	if err != nil || at.Port() == 0 {
		return at, fmt.Errorf("%q is neither an address and port such as 10.96.0.1:443 or [fd00::1]:443, "+
			"nor a name such as svc/default/web:http", s)
	}
	return clean(at, s)
}

// clean rejects addresses that no packet can have: unspecified ones and those with a zone.
func clean(at netip.AddrPort, s string) (netip.AddrPort, error) {
	ip := at.Addr().Unmap()
	switch {
	case ip.Zone() != "":
		return at, fmt.Errorf("%q has a zone: packets have none, leave it out", s)
	case ip.IsUnspecified():
		return at, fmt.Errorf("%q is no packet's address", s)
	}
	return netip.AddrPortFrom(ip, at.Port()), nil
}

// Validate returns an error if the addresses are of different families.
func (q Question) Validate() error {
	if k8s.FamilyOf(q.From.Addr()) != k8s.FamilyOf(q.To.Addr()) {
		return fmt.Errorf("no packet goes from %s to %s: one is %s, the other %s", q.From.Addr(), q.To.Addr(),
			k8s.FamilyOf(q.From.Addr()), k8s.FamilyOf(q.To.Addr()))
	}
	return nil
}
