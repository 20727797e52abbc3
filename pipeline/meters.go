package pipeline

import (
	"math/bits"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Packets that are to be refused go to nkp, at most Config.RejectRate a second. Half of that is for pods, in
// equal shares: the port of each has a meter of its own, so that a pod that sends many leaves the others
// their answers. The other half is for all other ports together, with the meter Layout.MeterID: the uplink
// and the node. Without pods they have the whole.

// Meters returns the meters that should be on the switch.
func (c *Compiler) Meters() []flow.Meter {
	if c.cfg.NoMeter {
		return nil
	}
	l := &c.cfg.Layout
	meters := c.cfg.meters(l.MeterID, func(port uint32) uint32 { return l.podMeters() + port })
	if c.cfg.AnswerPing {
		meters = append(meters, c.cfg.meters(l.pingMeter(0), l.pingMeter)...)
	}
	return meters
}

// meters returns meters that together let RejectRate pass: others for all ports that are no pod's, and one
// for each number that ofPod returns for a pod's port.
func (c *Config) meters(others uint32, ofPod func(port uint32) uint32) []flow.Meter {
	pods, rate := c.meteredPorts(), c.RejectRate
	if len(pods) == 0 {
		return []flow.Meter{{ID: others, Rate: rate, Burst: rate}}
	}
	half := max(1, rate/2)
	// A power of two, so that not every pod that comes or goes changes the meters of all.
	share := max(1, half>>bits.Len(uint(len(pods)-1)))
	meters := []flow.Meter{{ID: others, Rate: half, Burst: half}}
	for _, port := range pods {
		// After a pause a pod may be refused many times at once: the share bounds what it can do for long.
		m := flow.Meter{ID: ofPod(port), Rate: share, Burst: half}
		if !slices.Contains(meters, m) {
			meters = append(meters, m)
		}
	}
	return meters
}

// refuse adds the reject table: to nkp, through the meter of the port.
func (b *builder) refuse() {
	send := flow.ToController{MaxLen: rejectMaxLen}
	if b.NoMeter {
		b.add(tableReject, prioLast, 0, flow.Match{}, send)
		return
	}
	for _, port := range b.meteredPorts() {
		b.add(tableReject, prioFromPod, 0, flow.Match{InPort: port},
			flow.ToMeter{ID: b.Layout.podMeters() + port}, send)
	}
	b.add(tableReject, prioLast, 0, flow.Match{}, flow.ToMeter{ID: b.Layout.MeterID}, send)
}

// meteredPorts returns the OpenFlow ports with a meter of their own, sorted.
func (c *Config) meteredPorts() []uint32 {
	if c.OneMeter {
		return nil
	}
	return c.Senders
}

// podMeters is what is added to the number of a port for the id of its meter: by default 0x6e6b0000.
func (l Layout) podMeters() uint32 {
	if l.MeterID < 0x10000 {
		return l.MeterID << 16
	}
	return l.MeterID
}

// pingMeter returns the meter of pings from a pod's port; 0: from all ports that are no pod's. Behind the
// meters of ports few numbers are left, so that ports whose numbers differ by a multiple of pingShares have
// one meter together.
func (l Layout) pingMeter(port uint32) uint32 {
	if port == 0 {
		return l.pingMeters()
	}
	return l.pingMeters() + 1 + port%pingShares
}

const pingShares = 254

// pingMeters is the first meter on pings: behind those of ports or, with no numbers left there, before
// MeterID.
func (l Layout) pingMeters() uint32 {
	if first := l.podMeters() + lastPort + 1; first <= lastMeter-pingShares {
		return first
	}
	return l.MeterID - pingShares - 1
}

// IsMeter reports whether a meter is nkp's.
func (l Layout) IsMeter(id uint32) bool {
	return id == l.MeterID || id > l.podMeters() && id <= l.podMeters()+lastPort || l.IsPingMeter(id)
}

// IsPingMeter reports whether a meter is on pings.
func (l Layout) IsPingMeter(id uint32) bool {
	return id >= l.pingMeters() && id <= l.pingMeters()+pingShares
}

// The highest numbers of a port and of a meter (OFPP_MAX and OFPM_MAX, OpenFlow 1.5.1 §7.2.1.1 and §7.3.4.5).
const (
	lastPort  = 0xff00
	lastMeter = 0xffff0000
)
