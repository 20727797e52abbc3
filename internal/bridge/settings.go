package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Delivery says how Service packets reach pods on this bridge.
type Delivery string

// The values of --local-delivery.
const (
	DeliverAuto Delivery = "auto" // straight, unless the gateway enforces policy
	DeliverOn   Delivery = "on"   // straight
	DeliverOff  Delivery = "off"  // through the gateway, like all other traffic
)

// Guards says whether direct connections to endpoints are tracked (pipeline/README.md, "Port-reuse guards").
type Guards string

// The values of --port-reuse-guards.
const (
	// GuardsAuto: unless this Open vSwitch can crash because of them, or does not support them.
	GuardsAuto Guards = "auto"
	GuardsOn   Guards = "true"  // even if it can crash because of them
	GuardsOff  Guards = "false" // never
)

// HostTraffic selects the data plane for traffic that does not cross the bridge by itself: that of the node's
// own processes, and traffic that arrives on a NIC outside the bridge.
type HostTraffic string

// The values of --host-traffic.
const (
	// HostAuto: ovs where the node's address is on the bridge (and nftables or iptables for what the node
	// sends to itself), else nftables or iptables.
	HostAuto     HostTraffic = "auto"
	HostOVS      HostTraffic = "ovs"      // routes lead the node's traffic for Services to the bridge
	HostIPTables HostTraffic = "iptables" // the iptables data plane serves it, beside the bridge
	HostNFTables HostTraffic = "nftables" // the nftables data plane does
	HostOff      HostTraffic = "off"      // no data plane of nkp's
)

// DefaultHairpinIPs are the addresses that stand for a client which is its own endpoint: a link-local one
// (RFC 3927) and a unique local one (RFC 4193).
var DefaultHairpinIPs = []netip.Addr{
	netip.MustParseAddr("169.254.110.107"),
	netip.MustParseAddr("fd6e:6b70:6e6b::1"),
}

// Settings are what the command line says of the bridge.
type Settings struct {
	OVSDB  string // database of the switch, unix:/var/run/openvswitch/db.sock
	Bridge string
	// OpenFlow target; "": the bridge's management socket beside the database's
	OpenFlow        string
	TLS             ofctrl.TLSFiles // for ssl: targets, the database's and OpenFlow's
	ConfigureBridge bool            // enable OpenFlow15 on the bridge if it is not
	Uplink          string          // name or OpenFlow port number; "": port 1

	NodeMAC       flow.MAC
	GatewayMAC    flow.MAC
	HairpinIPs    []netip.Addr
	MasqueradeAll bool
	HostTraffic   HostTraffic
	LocalDelivery Delivery
	Counters      bool // of Services' connections, packets and bytes
	Guards        Guards
	RejectRate    uint32
	AnswerPing    bool // of Services' addresses
	// AffinityLimit is how many clients session affinity remembers of each Service port, AffinityNodeLimit
	// how many of all.
	AffinityLimit, AffinityNodeLimit uint32

	// AllowStateful lets nkp start where flows of others use conntrack on packets that it passes on.
	AllowStateful bool

	Ports  map[netip.Addr]PortOverride
	Layout pipeline.Layout

	// AuditPeriod is how often the whole switch is read back and compared; CountPeriod how often nkp's flows
	// are counted, which is cheap and notices most losses.
	AuditPeriod, CountPeriod time.Duration
}

// PortOverride is the port and MAC of a pod, from the file of --ports.
type PortOverride struct {
	OFPort uint32 `json:"ofport"`
	MAC    string `json:"mac"`

	mac flow.MAC
}

// LoadPorts reads the file of --ports: a JSON object from pod address to {"ofport": 11, "mac":
// "02:00:00:00:00:11"}.
func LoadPorts(file string) (map[netip.Addr]PortOverride, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var raw map[string]PortOverride
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	ports := map[netip.Addr]PortOverride{}
	for text, p := range raw {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not an address", file, text)
		}
		if p.mac, err = ParseMAC(p.MAC); err != nil {
			return nil, fmt.Errorf("%s: %s: mac: %w", file, text, err)
		}
		if p.OFPort == 0 || p.OFPort >= 0xff00 {
			return nil, fmt.Errorf("%s: %s: ofport: %d is not a port number (1-65279)", file, text, p.OFPort)
		}
		ports[ip.Unmap()] = p
	}
	return ports, nil
}

// DatabaseOptions returns the options of the connection to the switch's database; it reads the TLS files if
// they are needed.
func (s *Settings) DatabaseOptions() (ovsdb.Options, error) {
	o := ovsdb.Options{Endpoint: s.OVSDB, Bridge: s.Bridge}
	if addr, ok := strings.CutPrefix(s.OVSDB, "ssl:"); ok {
		cfg, err := s.TLS.Config(addr)
		if err != nil {
			return o, fmt.Errorf("%s: %w (--ca-cert, --certificate, --private-key)", s.OVSDB, err)
		}
		o.TLS = cfg
	}
	return o, nil
}

// ConnectDatabase connects to the switch's database and checks that nkp can use the bridge.
func (s *Settings) ConnectDatabase(ctx context.Context) (*ovsdb.Client, error) {
	opts, err := s.DatabaseOptions()
	if err != nil {
		return nil, err
	}
	db, err := ovsdb.Connect(ctx, opts)
	if err != nil {
		return nil, err
	}
	sw := db.Switch()
	if err := sw.Check(); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// OpenFlowTarget returns the target of the OpenFlow connection: --openflow, else the bridge's management
// socket next to the database's.
func (s *Settings) OpenFlowTarget() (string, error) {
	if s.OpenFlow != "" {
		return s.OpenFlow, nil
	}
	path, err := ovsdb.ManagementSocket(s.OVSDB, s.Bridge)
	return "unix:" + path, err
}

// DefaultAffinityNodeLimit is how many clients session affinity remembers on a node by default. Each takes
// about 1 kB of ovs-vswitchd's memory.
const DefaultAffinityNodeLimit = 100_000

// Filter returns the filter for the objects that nkp itself installs on the switch, and for the foreign flows
// in its tables.
func (s *Settings) Filter() ofctrl.Filter {
	f := ofctrl.Filter{
		Tables:   s.Layout.Tables(),
		Volatile: s.Layout.VolatileCookies(),
		IsMeter:  s.Layout.IsMeter,
		Keep:     s.mayInterfere,
	}
	f.Cookie, f.CookieMask = s.Layout.StaticCookies()
	f.GroupLo, f.GroupHi = s.Layout.Groups()
	return f
}

// ParseMAC reads an Ethernet address like 02:00:00:00:00:01.
func ParseMAC(s string) (flow.MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return flow.MAC{}, fmt.Errorf("%q is not an Ethernet address such as 02:00:00:00:00:01", s)
	}
	return flow.MAC(hw), nil
}
