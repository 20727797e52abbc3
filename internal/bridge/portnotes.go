package bridge

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// maxWrong bounds how many things of a kind are named.
const maxWrong = 5

// portNotes is what is wrong with ports of the bridge: by name, and as lines in the order in which it was
// found.
type portNotes struct {
	of    map[string][]string
	lines []string
}

func (n *portNotes) add(port, text string) {
	if n.of == nil {
		n.of = map[string][]string{}
	}
	n.of[port] = append(n.of[port], text)
	n.lines = append(n.lines, "port "+port+": "+text)
}

// byPort returns the notes by port, each with the time at which they were made.
func (n *portNotes) byPort(at time.Time) map[string][]string {
	out := make(map[string][]string, len(n.of))
	for port, texts := range n.of {
		for _, text := range texts {
			out[port] = append(out[port], text+" (seen at "+at.UTC().Format(time.TimeOnly)+"Z)")
		}
	}
	return out
}

// warnings returns the first notes, and how many others there are.
func (n *portNotes) warnings() []string {
	if more := len(n.lines) - maxWrong; more > 0 {
		return append(n.lines[:maxWrong:maxWrong], fmt.Sprintf("problems of ports that are not listed: %d",
			more))
	}
	return n.lines
}

// byDatabase notes what the database says against the pods' ports and the uplink.
func (n *portNotes) byDatabase(sw *ovsdb.Switch, uplink uint32) {
	for _, p := range sw.Ports {
		if p.OFPort == 0 || !p.IsPod() && p.OFPort != uplink {
			continue
		}
		if text := Unseen(&p, sw.Bridge); text != "" {
			n.add(p.Name, text)
		} else {
			for _, text := range p.Dead {
				n.add(p.Name, text+": nothing passes")
			}
			if p.LinkDown && len(p.Dead) == 0 {
				n.add(p.Name, linkDown+": nothing passes")
			}
		}
		for _, text := range p.Limited {
			if p.IsPod() {
				n.add(p.Name, text)
			}
		}
	}
}

const linkDown = "Interface.link_state is down"

// Unseen returns what is wrong with a port whose device is down for ovs-vswitchd, which does not see its
// state because the node has no device of that name any more; "": ovs-vswitchd sees it, or it is not down.
func Unseen(p *ovsdb.Port, bridge string) string {
	state := linkDown
	if len(p.Dead) > 0 {
		state = p.Dead[0]
	}
	down := len(p.Dead) == 0 && p.LinkDown || len(p.Dead) == 1 && strings.Contains(state, "admin_state")
	if !down || p.OFPort == 0 || p.Type != "" || !renamed(p.Name, bridge) {
		return ""
	}
	return state + " for ovs-vswitchd, but the node has no device of that name any more: " +
		"if it was renamed, it is used until ovs-vswitchd restarts, which will not find it then"
}

// renamed reports whether this network namespace has the bridge's device, and none of a name.
func renamed(name, bridge string) bool {
	_, err := net.InterfaceByName(bridge)
	_, gone := net.InterfaceByName(name)
	return err == nil && gone != nil
}

// byConfig notes what the configuration of ports keeps back (ovs-ofctl mod-port), which the database does not
// show. An error is ignored, because status says if the switch does not answer.
func (n *portNotes) byConfig(ctx context.Context, conn *ofctrl.Conn) {
	if conn == nil {
		return
	}
	ports, err := conn.Ports(ctx)
	if err != nil {
		return
	}

	for _, p := range ports {
		for _, c := range []struct {
			set        bool
			name, does string
		}{
			{p.NoReceive, "no-receive", "the switch drops all that comes from it"},
			{p.NoForward, "no-forward", "the switch sends nothing to it"},
			{
				p.NoPacketIn, "no-packet-in",
				"nkp does not get its packets to Services without endpoints, and cannot refuse them",
			},
		} {
			if c.set {
				n.add(p.Name, fmt.Sprintf("its OpenFlow configuration is %s: %s (ovs-ofctl mod-port)",
					c.name, c.does))
			}
		}
	}
}

// LimitedPort returns what may keep packets from the address of a pod of this node, although its port is up.
func (s *Settings) LimitedPort(sw *ovsdb.Switch, ip netip.Addr) []string {
	if _, set := s.Ports[ip]; set || !sw.Exists {
		return nil
	}
	p, _ := sw.PortByIP(ip)
	if text := Unseen(&p, sw.Bridge); text != "" {
		return append(slices.Clip(p.Limited), text)
	}
	return p.Limited
}

// Switch returns what the database says of the bridge now. Port.Limited also has what ovs-vswitchd and the
// kernel said against the port when Status or Asked last asked them.
func (p *Plane) Switch() ovsdb.Switch {
	sw := p.db.Switch()
	if said := p.notes.Load(); said != nil && len(*said) > 0 {
		ports := make([]ovsdb.Port, len(sw.Ports)) // snapshots are shared
		for i, port := range sw.Ports {
			port.Limited = append(port.Limited[:len(port.Limited):len(port.Limited)], (*said)[port.Name]...)
			ports[i] = port
		}
		sw.Ports = ports
	}
	return sw
}
