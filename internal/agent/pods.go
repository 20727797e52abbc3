package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/nkp-proxy/nkp/ovsdb"
)

// PodList is the output of `nkp pods -o json`: the bridge's ports that lead to pods.
type PodList struct {
	Node   string    `json:"node"`
	Bridge string    `json:"bridge"`
	Ports  []PodPort `json:"ports"` // by OpenFlow number
	// Notes are about the whole list, such as that ovs-vswitchd does not answer.
	Notes []string `json:"notes"`
}

// PodPort is a pod's port of the bridge, as the database shows it.
type PodPort struct {
	Port      string       `json:"port"`    // name of the interface
	OFPort    uint32       `json:"ofPort"`  // 0: ovs-vswitchd has not given it a number
	IfaceID   string       `json:"ifaceID"` // external_ids:iface-id
	Addresses []netip.Addr `json:"addresses"`
	MAC       string       `json:"mac"`  // "": not known
	VLAN      uint16       `json:"vlan"` // access or native VLAN, 0: none
	Trunks    []uint16     `json:"trunks"`
	Link      string       `json:"link"`  // up, down, or - for an interface that has no carrier to report
	State     string       `json:"state"` // ok, limited: some packets are kept back, or dead: nothing passes
	// Problems are what the database, ovs-vswitchd and the kernel say against the port, each with what to
	// look at.
	Problems []string `json:"problems"`
}

// podsWait bounds how long pods waits for ovs-vswitchd.
const podsWait = 2 * time.Second

// pods lists the pods' ports, with what the switch and the kernel say against them now.
func (a *Agent) pods(ctx context.Context) (*PodList, error) {
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
	return &PodList{Node: a.set.NodeName, Bridge: sw.Bridge, Ports: podPorts(sw), Notes: notes}, nil
}

// podPorts returns the ports of a switch that lead to pods. Its lists are never nil.
func podPorts(sw *ovsdb.Switch) []PodPort {
	list := []PodPort{}
	for _, p := range sw.Ports {
		if !p.IsPod() {
			continue
		}
		port := PodPort{
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

// Pods asks for the bridge's ports that lead to pods.
func (c *Caller) Pods(ctx context.Context) (*PodList, error) {
	return fetch[PodList](ctx, c, http.MethodGet, "/v1/pods")
}
