package command

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/trace"
)

// frontend is the flag --vip: an address and a port as nkp services prints them, or one of them.
type frontend struct {
	text     string
	address  netip.Addr // not valid: any
	port     uint16     // 0: any
	protocol string     // TCP, UDP or SCTP; "": any
}

func (f *frontend) Type() string   { return "ADDRESS[:PORT]" }
func (f *frontend) String() string { return f.text }

// flag defines --vip.
func (f *frontend) flag(fs *pflag.FlagSet) {
	fs.Var(f, "vip",
		"only Service ports that are served at this address, port or both, as the list prints them: "+
			"10.96.0.10, 10.96.0.10:53, node:30080, each with /PROTOCOL or without; an address of the "+
			"node stands for NodePorts")
}

// Set accepts ADDRESS, ADDRESS:PORT and node:PORT, each with /PROTOCOL or without, and in the brackets of one
// that is not served.
func (f *frontend) Set(text string) error {
	*f = frontend{text: text}
	if text == "" {
		return nil
	}

	where, protocol, named := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(text, "("), ")"), "/")
	f.protocol = strings.ToUpper(protocol)
	if named && f.protocol != "TCP" && f.protocol != "UDP" && f.protocol != "SCTP" {
		return fmt.Errorf("%q is not tcp, udp or sctp%s", protocol,
			trace.DidYouMean(protocol, enums["protocol"]))
	}

	if port, ok := strings.CutPrefix(where, "node:"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is not a port", port)
		}
		f.port = uint16(n)
		return nil
	}

	ip, err := netip.ParseAddr(strings.Trim(where, "[]"))
	if err != nil {
		var at netip.AddrPort
		at, err = netip.ParseAddrPort(where)
		ip, f.port = at.Addr(), at.Port()
		if at.Port() == 0 {
			err = strconv.ErrRange
		}
	}

	if err != nil || ip.Zone() != "" {
		return fmt.Errorf("%q is not an IP address, ADDRESS:PORT or node:PORT", text)
	}

	f.address = ip.Unmap()
	return nil
}
