package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/fallback/nftables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/internal/live"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/trace"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// ErrNoLive says that a data plane cannot be asked about single packets.
var ErrNoLive = errors.New(
	"--live cannot ask HNS about a packet: leave it out, and compare all load balancers with \"nkp diff\"")

// compare compares the model's answer with the bridge, or with iptables or nftables for packets that do not
// cross the bridge. The model has the packet's Service port only.
func (s *Settings) compare(
	ctx context.Context, now *planes, m *k8s.Model, q trace.Question, r *trace.Result,
) error {
	db := now.switchNow()
	switch {
	case r.Unserved:
		r.Live = live.Nothing()
		return nil
	case r.Userspace:
		r.Live = live.Userspace(r)
		return nil
	case db != nil && !db.Exists && (now.fallback == nil || r.Source != k8s.ThisNode):
		r.Live = live.Gone(bridge.Gone(db))
		return nil
	case db != nil && (now.fallback == nil ||
		OnBridge(now.fallback.Detail().Scope, now.bridge.NodeBeside(m), db, m, q, r)):
		if err := now.bridge.Answers(ctx); err != nil {
			r.Live = live.Silent(err.Error())
			return nil
		}

		sw, err := s.bridgeOf(ctx, now, db)
		if err != nil {
			return err
		}
		if err := sw.Compare(ctx, q, r); err != nil {
			return err
		}
		if r.Verdict == trace.Deliver && !r.PodHere(&m.Node) {
			live.Closed(func(ip netip.Addr) bool {
				_, is := db.PortByIP(ip)
				return is || slices.Contains(m.Node.Local, ip)
			}, r)
		}
		return s.CompareOwn(ctx, m, q, r)

	case now.fallback != nil:
		inForce := *s
		inForce.Fallback, inForce.IPTablesBackend = now.fallback.Options()
		return inForce.CompareRules(ctx, mode.Mode(now.fallback.Name()), inForce.Fallback.Scope, m, q, r)
	}
	return ErrNoLive
}

// OnBridge reports whether a packet crosses the bridge. iptables, with the given scope, serves packets that
// do not. beside are the families of which the node's addresses are not on the bridge.
func OnBridge(
	scope string, beside []k8s.Family, db *ovsdb.Switch, m *k8s.Model, q trace.Question, r *trace.Result,
) bool {
	to := q.To.Addr()
	_, isPort := portNumber(db, q.In)
	switch {
	case q.In != "":
		return isPort || q.In == localPort || scope != serving.Host.String()
	case scope == serving.Own.String():
		return r.Source != k8s.ThisNode || !to.IsLoopback() && !slices.Contains(m.Node.Local, to)
	case scope == serving.Host.String():
		return r.PodHere(&m.Node) || r.Source == k8s.Outside && !slices.Contains(beside, k8s.FamilyOf(to))
	}
	return true
}

// bridgeOf returns a live.Switch for the agent's own bridge.
func (s *Settings) bridgeOf(ctx context.Context, now *planes, db *ovsdb.Switch) (*live.Switch, error) {
	cfg, err := now.bridge.Config(ctx)
	if err != nil {
		return nil, err
	}

	sw, err := s.LiveSwitch(db)
	if err != nil {
		return nil, err
	}
	sw.Config, sw.Owner, sw.Installed = cfg, now.bridge.Owner, now.bridge.Installed

	sw.Packets = func(ctx context.Context, name k8s.PortName) (*trace.Packets, error) {
		first, c, err := now.bridge.PortCounters(ctx, name)
		if err != nil {
			return nil, err
		}
		p := &trace.Packets{First: first}
		if c.Packets != nil {
			p.ToEndpoints, p.ToClients = c.Packets.In, c.Packets.Out
		}
		return p, nil
	}

	sw.Diff = func(ctx context.Context) (*live.Differences, error) {
		d, err := now.bridge.Differences(ctx)
		return LiveDifferences(&d), err
	}

	sw.Returns, sw.Timeouts = now.bridge.Returns, now.bridge.Timeouts
	return sw, nil
}

// LiveDifferences converts a bridge's differences for package live.
func LiveDifferences(d *bridge.Differences) *live.Differences {
	return &live.Differences{Own: d.Own, Foreign: d.Foreign.Kept,
		More: d.Foreign.Number - len(d.Foreign.Inside), FailOpen: d.FailOpen}
}

// LiveSwitch returns what the database holds about the way to a bridge; Config, Owner and Installed are the
// caller's to set.
func (s *Settings) LiveSwitch(db *ovsdb.Switch) (*live.Switch, error) {
	tracker := dpctl.Find(s.OVSDB, db.DatapathType)
	if tracker.Missing != nil {
		return nil, fmt.Errorf("--live: %w", tracker.Missing)
	}
	return &live.Switch{
		Daemon: tracker, Bridge: s.Bridge,
		Port:  func(name string) (uint32, bool) { return portNumber(db, name) },
		Usage: func(ctx context.Context) dpctl.Usage { return s.ConntrackUsage(ctx, db) },
	}, nil
}

// localPort is what --in calls the bridge's own port.
const localPort = "LOCAL"

// switchNow returns what the database says of the agent's bridge; nil if it has none.
func (p *planes) switchNow() *ovsdb.Switch {
	if p.bridge == nil {
		return nil
	}
	db := p.bridge.Switch()
	return &db
}

// PortNames returns the names of the port by which a packet enters and of the uplink. in may be a name or a
// number; db is nil if there is no switch to ask.
func (s *Settings) PortNames(db *ovsdb.Switch, in string) (name, uplink string) {
	name, uplink = in, s.Uplink
	if db == nil {
		return name, uplink
	}
	if n, ok := portNumber(db, in); ok {
		if p, ok := db.PortByNumber(n); ok {
			name = p.Name
		}
	}
	if p, err := db.Uplink(s.Uplink); err == nil {
		uplink = p.Name
	}
	return name, uplink
}

// portNumber finds a port by its name or OpenFlow number.
func portNumber(db *ovsdb.Switch, name string) (uint32, bool) {
	if p, ok := db.PortByName(name); ok && p.OFPort != 0 {
		return p.OFPort, true
	}
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return 0, false
	}
	p, ok := db.PortByNumber(uint32(n))
	return p.OFPort, ok
}

// CompareRules compares the model's answer with the installed rules of iptables or nftables, as mode says.
func (s *Settings) CompareRules(
	ctx context.Context, by mode.Mode, scope serving.Scope, m *k8s.Model, q trace.Question, r *trace.Result,
) error {
	family := k8s.FamilyOf(q.To.Addr())
	if by == mode.NFTables {
		o := s.NFTablesOptions(scope)
		set := tables(ctx, m, family)
		set.Diff = func() ([]string, error) { return nftables.DiffService(m, o, family, r.Port) }
		set.PodDevice, set.Connections = o.PodDevice, kernelConnections(ctx, q)
		err := set.Compare(q, r)
		if err == nil {
			live.Routes(m.Node.Local, "", nftables.OfDevice, q, r)
		}
		return err
	}
	installed, err := iptables.ReadRules(ctx, s.IPTablesBackend, family)
	if err != nil {
		return err
	}
	others := tables(ctx, m, family)
	others.PodDevice = s.NFTablesOptions(scope).PodDevice
	set := live.Rules{Tables: installed, Node: m.Node,
		Detector: m.Detector, Connections: kernelConnections(ctx, q), Others: &others}
	if err = set.Compare(q, r); err == nil {
		live.Routes(m.Node.Local, "", nftables.OfDevice, q, r)
	}
	return err
}

// tables returns the node's nftables of a family.
func tables(ctx context.Context, m *k8s.Model, family k8s.Family) live.Tables {
	return live.Tables{
		Follow: func(p rules.Packet) ([]rules.Path, []string, error) {
			return nftables.Follow(ctx, family, p)
		},
		Legacy: func(chains ...string) (string, map[string]map[string][]string, error) {
			return iptables.LegacyRules(ctx, family, chains...)
		},
		Node: m.Node, Detector: m.Detector,
	}
}

// CompareOwn adds to r.Live, for a packet of the node's own processes, how the kernel sends it to the bridge,
// and what the node's rules do with it and with its answer.
func (s *Settings) CompareOwn(ctx context.Context, m *k8s.Model, q trace.Question, r *trace.Result) error {
	if r.Source != k8s.ThisNode || q.In != "" || q.From.Addr().IsLoopback() {
		return nil
	}
	live.Routes(m.Node.Local, s.Bridge, nftables.OfDevice, q, r)
	set := tables(ctx, m, k8s.FamilyOf(q.To.Addr()))
	return set.CompareOwn(s.Bridge, q, r)
}

// kernelConnections lists what the kernel tracks of the question's family.
func kernelConnections(ctx context.Context, q trace.Question) func(func(*dpctl.Connection) error) error {
	return func(do func(*dpctl.Connection) error) error {
		return conntrack.Each(ctx, k8s.FamilyOf(q.To.Addr()), 0, do)
	}
}
