//go:build linux

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/bench/rig"
)

// kinds are the proxies of a full run, in the order of the tables.
var kinds = []rig.Kind{rig.NKP, rig.NFTables, rig.KubeNft, rig.KubeLegacy}

// plan says what a run measures and for how long.
type plan struct {
	full  bool
	kinds []rig.Kind
	sizes []size

	starts int // of nkp at each size; kube-proxy starts once

	changes                   int           // of one endpoint, one after the other
	changeBudget, shortBudget time.Duration // after which no further change is begun: at the last size, at the others

	burst, peerBurst time.Duration // how long 100 changes come each second: nkp, kube-proxy
	shortBurst       time.Duration // the same at all sizes but the last
	idle, shortIdle  time.Duration // how long the proxy is watched at rest: at the last size, at the others

	rounds int           // of the data plane, VIP and direct in turns; even, since each comes first in every second one
	round  time.Duration // each

	agents int           // of the fleet
	fleet  time.Duration // how long its changes come

	events int // rounds of each of measureEvents; 0: not measured
}

// size is one number of Services and what is measured there.
type size struct {
	services             int
	endpoints            int // of each Service; 0: rig.Endpoints
	control, data, fleet bool
	repair               bool // of the nftables modes
	huge                 bool // one of the sizes of -huge
}

// each returns the number of endpoints of each Service.
func (s size) each() int { return cmp.Or(s.endpoints, rig.Endpoints) }

// String names the size as -sizes does.
func (s size) String() string {
	if s.endpoints == 0 {
		return strconv.Itoa(s.services)
	}
	return fmt.Sprintf("%dx%d", s.services, s.endpoints)
}

// hugeSizes are measured with the flag -huge only: they take ten minutes more. The first is there for the exponents.
var hugeSizes = []size{
	{services: 1000, endpoints: 5, control: true, huge: true}, {services: 50_000, endpoints: 5, control: true, repair: true, huge: true},
	{services: 5000, endpoints: 50, control: true, huge: true},
}

// leavesOut reports whether a proxy is not measured here: kube-proxy's iptables mode would take hours where there are very many
// Services.
func (s size) leavesOut(k rig.Kind) bool { return s.huge && k == rig.KubeLegacy }

func fullPlan(quick bool) plan {
	p := plan{
		full:  true,
		kinds: kinds,
		sizes: []size{
			{services: 10, data: true}, {services: 100, control: true}, {services: 1000, control: true, data: true, fleet: true},
			{services: 5000, control: true}, {services: 10_000, control: true, data: true, repair: true},
		},
		starts: 3, changes: 200, changeBudget: 30 * time.Second, shortBudget: 12 * time.Second,
		burst: time.Minute, peerBurst: 20 * time.Second, shortBurst: 5 * time.Second,
		idle: 15 * time.Second, shortIdle: 3 * time.Second,
		rounds: 16, round: 750 * time.Millisecond,
		agents: 50, fleet: 15 * time.Second,
	}
	if quick {
		p.full = false
		p.sizes = []size{{services: 100, control: true}, {services: 1000, control: true, data: true, fleet: true, repair: true}}
		p.changes, p.changeBudget, p.shortBudget = 40, 6*time.Second, 4*time.Second
		p.burst, p.peerBurst, p.shortBurst = 3*time.Second, 3*time.Second, 2*time.Second
		p.idle, p.shortIdle = 3*time.Second, 2*time.Second
		p.rounds, p.round = 2, 200*time.Millisecond
		p.agents, p.fleet = 10, 3*time.Second
	}
	return p
}

// trendPlan measures what has a reference, in more and shorter rounds than a quick run: each ratio needs an interval.
func trendPlan() plan {
	p := fullPlan(true)
	p.kinds = []rig.Kind{rig.NKP, rig.NFTables, rig.KubeNft}
	p.sizes = []size{{services: 1000, control: true, data: true}}
	p.starts, p.rounds, p.round = 5, 8, 400*time.Millisecond
	p.changes, p.changeBudget = 60, 20*time.Second
	p.agents, p.events = 0, 6
	return p
}

// only leaves out what the comma-separated list does not name; "" keeps everything.
func (p plan) only(list string) plan {
	if list == "" {
		return p
	}
	p.kinds = nil
	agents := 0
	for name := range strings.SplitSeq(list, ",") {
		switch name {
		case "nkp":
			p.kinds = append(p.kinds, rig.NKP)
		case "nkp-nftables":
			p.kinds = append(p.kinds, rig.NFTables)
		case "nftables":
			p.kinds = append(p.kinds, rig.KubeNft)
		case "iptables":
			p.kinds = append(p.kinds, rig.KubeLegacy)
		case "fleet":
			agents = p.agents
		}
	}
	p.agents, p.full = agents, false // documents need all
	return p
}

// at leaves out the sizes that the comma-separated list does not name; "" keeps all.
func (p plan) at(list string) plan {
	if list == "" {
		return p
	}
	names := strings.Split(list, ",")
	p.sizes = slices.DeleteFunc(p.sizes, func(s size) bool { return !slices.Contains(names, s.String()) })
	p.full = false
	return p
}

// andHuge adds very many Services.
func (p plan) andHuge() plan {
	p.sizes = append(p.sizes, hugeSizes...)
	return p
}

// byEndpoints returns the numbers of Services, those together that have as many endpoints.
func (p plan) byEndpoints() (list [][]size) {
	for _, s := range p.sizes {
		if n := len(list) - 1; n >= 0 && list[n][0].each() == s.each() {
			list[n] = append(list[n], s)
		} else {
			list = append(list, []size{s})
		}
	}
	return list
}

// last reports whether this is the largest number of Services that the targets speak of.
func (p plan) last(s size) bool {
	list := slices.DeleteFunc(slices.Clone(p.sizes), func(s size) bool { return s.huge })
	return len(list) > 0 && s == list[len(list)-1]
}
