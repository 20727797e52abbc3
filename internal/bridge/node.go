package bridge

import (
	"log/slog"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// node collects the inputs of the pipeline's configuration: the settings, the model's Node, the switch's database and the
// kernel's neighbour table. It belongs to the loop.
type node struct {
	set *Settings
	db  *ovsdb.Client
	log *slog.Logger

	facts    k8s.Model   // the model without its Services
	onBridge bool        // the node has a MAC on the bridge
	gateway  flow.MAC    // of the router, as last seen
	looks    int         // for the router's MAC and the node's address, since the last connection to the switch
	absent   time.Time   // since when the node's address is seen not to be on the bridge any more; zero: it is there, or was not at the last configuration
	others   flow.Others // of table 0: seeOthers
	noMeter  bool        // the switch rejected the meter of all ports
	oneMeter bool        // the switch rejected that of a pod
	warnings []string    // about the last configuration
}

// config returns the pipeline's configuration, and logs warnings that are new.
func (n *node) config() pipeline.Config {
	sw := n.db.Switch()
	cfg, warnings := n.set.PipelineConfig(&n.facts, &sw)
	if cfg.GatewayMAC.IsZero() {
		cfg.GatewayMAC = n.gateway // the kernel may forget a neighbour it does not talk to
	}
	cfg.Others = n.others
	n.gateway, n.onBridge = cfg.GatewayMAC, !cfg.NodeMAC.IsZero()
	if n.noMeter {
		cfg.NoMeter = true
		warnings = append(warnings, "the switch has no meters: packets that nkp has to reject are limited by its queue alone")
	} else if n.oneMeter {
		cfg.OneMeter = true
		warnings = append(warnings, "the switch has too few meters for one a pod: one that sends many packets to Services without endpoints can keep others from being refused")
	}
	for _, w := range warnings {
		if !slices.Contains(n.warnings, w) {
			n.log.Warn(w)
		}
	}
	n.warnings = warnings
	return cfg
}

// The kernel resolves the router's MAC as soon as the bridge passes the request. It repeats a lost request only after a second. The
// node's address may return to the bridge after the last change in the switch's database: on the userspace datapath the bridge's
// device disappears with ovs-vswitchd. nkp therefore checks both gatewayLooks times after each connection to the switch, with pauses
// that grow by gatewayPause, and then every CountPeriod.
const (
	gatewayLooks = 20
	gatewayPause = 10 * time.Millisecond
)

// wantsGateway reports whether the router's MAC has to be resolved.
func (n *node) wantsGateway() bool { return n.onBridge && n.set.GatewayMAC.IsZero() }

// nextLook returns when to look for the router's MAC and the node's address next, from now; false: not before the next CountPeriod.
func (n *node) nextLook() (time.Duration, bool) {
	missing := !n.onBridge || n.wantsGateway() && n.gateway.IsZero()
	return time.Duration(n.looks) * gatewayPause, n.looks < gatewayLooks && missing
}

// addressMoved reports whether an address of the node is on the bridge now, and was not at the last configuration, or the reverse. It
// believes that the address has left only after CountPeriod, because programs that configure a network may take it away and put it back.
func (n *node) addressMoved() bool {
	if sw := n.db.Switch(); !n.set.NodeMAC.IsZero() || !sw.Exists || len(sw.LocalMAC) == 0 {
		return false
	}
	on, err := addressesOn(n.set.Bridge, n.facts.Node.IPs)
	if err != nil || on || !n.onBridge {
		n.absent = time.Time{}
		return err == nil && on != n.onBridge
	}
	if n.absent.IsZero() {
		n.absent = time.Now()
	}
	return time.Since(n.absent) >= n.set.CountPeriod
}

// gatewayChanged reports whether the kernel has another MAC for the router than the last configuration.
func (n *node) gatewayChanged() bool {
	if !n.wantsGateway() {
		return false
	}
	m, sw := gatewayMAC(n.set.Bridge, true), n.db.Switch()
	return !m.IsZero() && m != n.gateway && podOf(&sw, m) == ""
}

// seeOthers looks at what the flows of others in table 0 do, and reports whether that has changed. Once they
// decide they do so until nkp ends: their owner may delete all of them only to add them again, and nkp must
// not forward meanwhile what they would drop. unread are the tables with too many flows to read.
func (n *node) seeOthers(conn *ofctrl.Conn, unread map[uint8]int) bool {
	now := othersNow(conn, unread)
	if now == n.others || n.others == flow.OthersDecide {
		return false
	}
	n.others = now
	return true
}

func othersNow(conn *ofctrl.Conn, unread map[uint8]int) flow.Others {
	if unread[0] > 0 {
		return flow.OthersDecide
	}
	return conn.Others(0)
}
