package pipeline

import (
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// The rates of all meters together are at most the one that was asked for, and no pod changes those of all.
func TestMetersAreShares(t *testing.T) {
	ports := func(n int) (out []uint32) {
		for i := range n {
			out = append(out, uint32(i+2))
		}
		return out
	}
	for _, tc := range []struct {
		pods                int
		rate, others, share uint32
	}{
		{pods: 0, rate: 1000, others: 1000},
		{pods: 1, rate: 1000, others: 500, share: 500},
		{pods: 2, rate: 1000, others: 500, share: 250},
		{pods: 5, rate: 1000, others: 500, share: 62},
		{pods: 8, rate: 1000, others: 500, share: 62},
		{pods: 250, rate: 1000, others: 500, share: 1},
		{pods: 5, rate: 1, others: 1, share: 1}, // the least that a meter can pass
	} {
		cfg := Config{Layout: DefaultLayout(), RejectRate: tc.rate, Senders: ports(tc.pods)}
		c, err := NewCompiler(cfg)
		if err != nil {
			t.Fatal(err)
		}
		meters := c.Meters()
		if len(meters) != 1+tc.pods || meters[0] != (flow.Meter{ID: 0x6e6b, Rate: tc.others, Burst: tc.others}) {
			t.Errorf("%d pods: %v", tc.pods, meters)
		}
		for i, m := range meters[1:] {
			if m != (flow.Meter{ID: 0x6e6b0002 + uint32(i), Rate: tc.share, Burst: tc.others}) || !cfg.Layout.IsMeter(m.ID) {
				t.Errorf("%d pods: %v", tc.pods, m)
			}
		}
		refused := 0
		for _, f := range c.State().Flows {
			if f.Table == tableReject {
				if want := (flow.ToMeter{ID: cfg.Layout.podMeters() + f.Match.InPort}); f.Match.InPort != 0 && f.Actions[0] != want {
					t.Errorf("%v: want %v", f, want)
				}
				refused++
			}
		}
		if refused != 1+tc.pods {
			t.Errorf("%d pods: %d flows to nkp", tc.pods, refused)
		}
	}
}

// A pod that comes adds its own meter and flow; one that goes takes them away; a switch with few meters gets one.
func TestMetersFollowPods(t *testing.T) {
	cfg := Config{Layout: DefaultLayout(), Senders: []uint32{2, 3, 4}}
	c, err := NewCompiler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const pods = 0x6e6b0000
	for _, step := range []struct {
		senders  []uint32
		one      bool
		set, del []uint32
	}{
		{senders: []uint32{2, 3, 4, 9}, set: []uint32{pods + 9}},
		{senders: []uint32{2, 4, 9}, del: []uint32{pods + 3}},
		{senders: []uint32{2, 4}, set: []uint32{pods + 2, pods + 4}, del: []uint32{pods + 9}}, // larger shares
		{senders: []uint32{2, 4}, one: true, set: []uint32{0x6e6b}, del: []uint32{pods + 2, pods + 4}},
	} {
		cfg.Senders, cfg.OneMeter = step.senders, step.one
		d, err := c.Reconfigure(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var set []uint32
		for _, m := range d.SetMeters {
			set = append(set, m.ID)
		}
		if !slices.Equal(set, step.set) || !slices.Equal(d.DelMeters, step.del) {
			t.Errorf("%v: set %#x, delete %#x; want %#x and %#x", step.senders, set, d.DelMeters, step.set, step.del)
		}
	}
}

func TestOwnMeters(t *testing.T) {
	for id, layouts := range map[uint32][2]bool{ // of the meters 0x6e6b and 0x20000
		0: {}, 1: {}, 0x6e6a: {}, 0x6e6b: {true, false}, 0x6e6c: {}, 0x6e6b0000: {}, 0x6e6b0001: {true, false}, 0x6e6bff00: {true, false}, 0x6e6bffff: {true, false}, 0x6e6c0000: {},
		0x1ffff: {}, 0x20000: {false, true}, 0x20001: {false, true}, 0x2ff00: {false, true}, 0x2ffff: {false, true}, 0x30000: {}, 0xffffffff: {},
	} {
		for i, meter := range []uint32{0x6e6b, 0x20000} {
			l := DefaultLayout()
			l.MeterID = meter
			if l.IsMeter(id) != layouts[i] {
				t.Errorf("layout %#x, meter %#x: %v", meter, id, !layouts[i])
			}
		}
	}
	for meter, ok := range map[uint32]bool{0: false, 1: true, 0xffff: true, 0x10000: true, 0xfffe0001: true, 0xfffe0100: true, 0xfffe0101: false} {
		l := DefaultLayout()
		l.MeterID = meter
		if (l.Validate() == nil) != ok {
			t.Errorf("meter %#x: %v", meter, l.Validate())
		}
	}
}

// Whatever the number of the meter on rejects, the meters on pings have valid ids that no other meter of nkp's has.
func TestPingMeterIDs(t *testing.T) {
	for _, meter := range []uint32{1, 0x6e6b, 0xfffe, 0xffff, 0x10000, 0xfffe0000, 0xfffe0001, 0xfffe0002, 0xfffe0100} {
		l := DefaultLayout()
		l.MeterID = meter
		for port := range uint32(lastPort + 1) {
			id := l.pingMeter(port)
			if !l.IsMeter(id) || !l.IsPingMeter(id) || id == 0 || id > lastMeter || id == meter || id > l.podMeters() && id-l.podMeters() <= lastPort {
				t.Fatalf("meter %#x: pings from port %d have the meter %#x", meter, port, id)
			}
			if port > 0 && l.IsPingMeter(l.podMeters()+port) || l.IsPingMeter(meter) {
				t.Fatalf("meter %#x: that of port %d is one on pings", meter, port)
			}
		}
	}
}

// A meter like those on pings, left by a release that does not know them, goes if no flow uses it.
func TestStrayMeters(t *testing.T) {
	c := compile(t, testConfig())
	l := c.Config().Layout
	first := l.pingMeter(0)
	compare := func(unused bool) *Comparison {
		x := c.Compare()
		x.NoPings = unused
		for _, f := range c.State().Flows {
			x.Flow(f)
		}
		for _, m := range c.Meters() {
			x.Meter(m)
		}
		for i, rate := range []uint32{1000, 1000, 0} { // the last is unlike nkp's
			x.Meter(flow.Meter{ID: first + uint32(i), Rate: rate, Burst: rate})
		}
		return x
	}
	if !compare(false).InStep() {
		t.Error("meters are taken for nkp's, which others may use")
	}
	x := compare(true)
	if d := x.Delta(); !slices.Equal(d.DelMeters, []uint32{first, first + 1}) || x.InStep() {
		t.Errorf("deleted %#x, want %#x and the next", d.DelMeters, first)
	}
}
