package bridge

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// facts collects the inputs of the pipeline's configuration: the settings, the model's Node, the switch's
// database and the kernel's network. It belongs to the loop.
type facts struct {
	set *Settings
	db  *ovsdb.Client
	log *slog.Logger

	reservePorts func(lo, hi int) error

	model    k8s.Model // without its Services
	kernel   kernel
	onBridge bool      // the node has a MAC on the bridge
	rest     time.Time // the network is not read again before
	renew    time.Time // what follows from the same network is not computed again before
	// absent is since when the node's address is seen not to be on the bridge any more. Zero: it is there, or
	// was not at the last configuration.
	absent   time.Time
	others   flow.Others // of table 0: seeOthers
	returned time.Time   // when others last came to decide less
	held     bool        // others decide less than that, which counts from returnPause after returned
	noMeter  bool        // the switch rejected the meter of all ports
	oneMeter bool        // the switch rejected that of a pod
	noPings  bool        // the switch rejected one on pings
	warnings []string    // about the last configuration
}

// config returns the pipeline's configuration, and logs warnings that are new.
func (n *facts) config() pipeline.Config {
	if n.kernel.network == nil {
		n.look()
	}

	sw := n.db.Switch()
	cfg, warnings := n.set.pipelineConfig(&n.model, &sw, &n.kernel)
	n.onBridge = !cfg.NodeMAC.IsZero()

	if n.onBridge && cfg.MasqueradeMax == 0 {
		if err := n.reservePorts(pipeline.MasqueradePortMin, pipeline.MasqueradePortMax); err != nil {
			warnings = append(warnings, fmt.Sprintf("the kernel gives the ports %d-%d to the node's own "+
				"connections (net.ipv4.ip_local_port_range), and nkp masquerades with them: "+
				"connections to the same endpoint can break; "+
				"reserve at least %d of them in net.ipv4.ip_local_reserved_ports (%v)",
				pipeline.MasqueradePortMin, pipeline.MasqueradePortMax, minPorts, err))
		} else {
			n.look()
			cfg.MasqueradeMin, cfg.MasqueradeMax = n.kernel.ports()
		}
	}

	cfg.Others = n.others
	if n.noMeter {
		cfg.NoMeter = true
		warnings = append(warnings,
			"the switch has no meters: packets that nkp has to reject are limited by its queue alone")
	} else if n.oneMeter {
		cfg.OneMeter = true
		warnings = append(warnings, "the switch has too few meters for one a pod: "+
			"one that sends many packets to Services without endpoints can keep others from being refused")
	}

	if cfg.AnswerPing && (n.noMeter || n.noPings) {
		cfg.AnswerPing = false
		warnings = append(warnings, "the switch has no meters for pings of Services' addresses: "+
			"they are not answered (--answer-ping)")
	}

	n.keepWarnings(warnings)
	return cfg
}

// keepWarnings replaces the warnings about the last configuration, and logs those that are new. One that
// differs in the ports of the bridge only is not: pods' ports come and go.
func (n *facts) keepWarnings(warnings []string) {
	for _, w := range warnings {
		about, _, _ := strings.Cut(w, ovsdb.PortsHere)
		known := func(old string) bool { return old == w || strings.HasPrefix(old, about+ovsdb.PortsHere) }
		if !slices.ContainsFunc(n.warnings, known) {
			n.log.Warn(w)
		}
	}
	n.warnings = warnings
}

// lookRest bounds the share of time that it takes to follow a network that changes all the time: after a
// reading, and what follows from it, nkp waits that many times as long, though no longer than to the next
// CountPeriod.
const lookRest = 9

// renewRest bounds the share of time that it takes to compute anew what follows from a network that has not
// changed: it also depends on sysctls, on what others make of nkp's routes, and on endpoints.
const renewRest = 99

// look reads the network from the kernel and reports whether it has changed. It believes that the node's
// address has left the bridge only after CountPeriod, because programs that configure a network may take it
// away and put it back.
func (n *facts) look() (changed bool) {
	network, err := node.Read()
	if err != nil {
		n.log.Warn("cannot read the node's network from the kernel: what is known of it stays in force",
			"error", err)
		return false
	}
	_, visible := network.Link(n.set.Bridge)
	switch {
	case n.kernel.network == nil:
	case !visible: // on the userspace datapath the bridge's device disappears with ovs-vswitchd
		return false
	case n.onBridge && n.set.NodeMAC.IsZero() && !network.At(n.set.Bridge, n.model.Node.IPs):
		if n.absent.IsZero() {
			n.absent = time.Now()
		}
		if time.Since(n.absent) < n.set.CountPeriod {
			return false
		}
	}
	changed = !reflect.DeepEqual(n.kernel.network, network)
	n.absent, n.kernel.network = time.Time{}, network
	return changed
}

// ask has the kernel resolve what the last configuration lacks, and confirm what it has not for a while:
// nothing that the bridge sends makes the kernel do so.
func (n *facts) ask() {
	for _, at := range n.kernel.ask[:min(len(n.kernel.ask), maxRoutes)] {
		node.Ask(at)
	}
}

// resolve asks for new endpoints that the node reaches without a router.
func (n *facts) resolve(ports map[k8s.PortName]*k8s.ServicePort) {
	asked := n.kernel.ask
	n.kernel.ask = nil
	for _, sp := range ports {
		if sp != nil {
			sp.EachRemoteEndpoint(n.kernel.resolve)
		}
	}
	n.ask()
	n.kernel.ask = append(n.kernel.ask, asked...)
	n.kernel.ask = n.kernel.ask[:min(len(n.kernel.ask), maxRoutes)]
}

// returnPause is the time between two changes back to fewer flows of others, at least: each reconfigures the
// pipeline, and a program may add and delete its flow again and again. The other direction, in which nkp
// forwards less, is followed at once.
const returnPause = time.Second

// seeOthers looks at what the flows of others in table 0 do, and reports whether that has changed. Once they
// decide they do so until nkp ends: their owner may delete all of them only to add them again, and nkp must
// not forward meanwhile what they would drop. unread are the tables with too many flows to read.
func (n *facts) seeOthers(conn *ofctrl.Conn, unread map[uint8]int) bool {
	return n.followOthers(othersNow(conn, unread))
}

// followOthers is seeOthers with what the flows of others in table 0 do now.
func (n *facts) followOthers(now flow.Others) bool {
	n.held = false
	if now == n.others || n.others == flow.OthersDecide {
		return false
	}
	if now < n.others {
		if n.held = time.Since(n.returned) < returnPause; n.held {
			return false
		}
		n.returned = time.Now()
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
