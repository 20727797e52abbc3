package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// podsWait bounds how long pods waits for ovs-vswitchd.
const podsWait = 2 * time.Second

// pods lists the pods' ports, with what the switch and the kernel say against them now.
func (a *Agent) pods(ctx context.Context) (*api.PodList, error) {
	active := a.main
	if err := a.ask(ctx, func() { active = a.planes }); err != nil {
		return nil, err
	}
	if active.bridge == nil {
		return nil, fmt.Errorf(
			"there is no bridge: nkp serves in mode %s (%s), where pods have no ports that it knows", a.mode,
			a.reason)
	}
	soon, cancel := context.WithTimeout(ctx, podsWait)
	defer cancel()
	usage, _, _ := active.bridge.Asked(soon) // switchNow has what is said against ports from here
	unknown := usage.NotKnown
	if soon.Err() != nil {
		unknown = fmt.Sprintf("ovs-vswitchd did not answer within %v", podsWait)
	} else if err := active.bridge.Answers(ctx); err != nil {
		unknown = err.Error()
	}
	notes := []string{}
	if unknown != "" {
		notes = append(notes, "what ovs-vswitchd and the kernel say against ports now is not known: "+unknown)
	}

	sw := active.switchNow()
	if !sw.Exists {
		return nil, fmt.Errorf("bridge %s does not exist: create it, or choose another --bridge", sw.Bridge)
	}
	return &api.PodList{Node: a.set.NodeName, Bridge: sw.Bridge, Ports: podPorts(sw), Notes: notes}, nil
}

// podPorts returns the ports of a switch that lead to pods. Its lists are never nil.
func podPorts(sw *ovsdb.Switch) []api.PodPort {
	list := []api.PodPort{}
	for _, p := range sw.Ports {
		if !p.IsPod() {
			continue
		}
		if text := bridge.Unseen(&p, sw.Bridge); text != "" {
			p.Dead, p.LinkDown, p.Limited = nil, false, append(slices.Clip(p.Limited), text)
		}
		port := api.PodPort{
			Port:      p.Name,
			OFPort:    p.OFPort,
			IfaceID:   p.IfaceID,
			Addresses: append([]netip.Addr{}, p.IPs...),
			MAC:       p.MAC.String(),
			VLAN:      p.Tag,
			Trunks:    append([]uint16{}, p.Trunks...),
			Link:      "up",
			State:     "ok",
			Problems:  append(append([]string{}, p.Dead...), p.Limited...),
		}

		if len(p.Limited) > 0 {
			port.State = "limited"
		}

		if p.OFPort == 0 {
			why := cmp.Or(p.Error, "ovs-vswitchd has not given it one, and no error")
			port.Problems = append([]string{"it has no OpenFlow number: " + why}, port.Problems...)
		}

		switch {
		case p.LinkDown:
			port.Link = "down"
		case p.Type != "":
			port.Link = "-"
		}

		if p.LinkDown && len(p.Dead) == 0 {
			port.Problems = append(port.Problems, "Interface.link_state is down: nothing passes")
		}
		if p.OFPort == 0 || p.LinkDown || len(p.Dead) > 0 {
			port.State = "dead"
		}

		list = append(list, port)
	}
	return list
}
