//go:build linux

package faults

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/wait"
)

// behaviour is how an interceptor treats what passes.
type behaviour struct {
	// claim answers each bundle with success and lets none of it through.
	claim bool
	// forget reports neither flows nor groups.
	forget bool
	// cut is called instead of passing on the first NXT_CT_FLUSH that is no probe, and the connection is closed then.
	cut func()
	// flood sends what nobody asked for, as fast as it is taken.
	flood func(r *rand.Rand) []byte
}

// interceptor stands between the agent and the switch's OpenFlow socket.
type interceptor struct {
	proxy *ofctrltest.Proxy

	mu    sync.Mutex // protects now and reads
	now   behaviour
	reads map[*ofctrltest.Pair]chan struct{} // closed when the agent has asked for flows: the handshake is over

	told, flooded atomic.Int64 // bundles answered falsely, bytes of floods
	// scans and lookups are the flushes for which the switch goes through its whole conntrack table, and those by which it deletes one
	// entry of a Service of the tests.
	scans, lookups atomic.Int64
}

// intercept has the agent reach the switch through an interceptor alone.
func (c *cluster) intercept(t *testing.T) *interceptor {
	t.Helper()
	z := &interceptor{reads: map[*ofctrltest.Pair]chan struct{}{}}
	path := c.RunDir + "/interceptor.mgmt"
	var err error
	z.proxy, err = ofctrltest.Intercept(path, c.Mgmt(c.Bridge),
		ofctrltest.Handlers{Connected: z.flood, FromController: z.fromAgent, FromSwitch: z.fromSwitch})
	must(t, err)
	t.Cleanup(func() { z.proxy.Close() })
	c.openflow = "unix:" + path
	return z
}

func (z *interceptor) get() behaviour {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.now
}

// become lies from now on, on new connections: those there are, are cut.
func (z *interceptor) become(l behaviour) {
	z.set(l)
	z.proxy.Cut()
}

// set lies from now on, also on the connections there are.
func (z *interceptor) set(l behaviour) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.now = l
}

// read returns the channel that is closed when the agent asks for flows.
func (z *interceptor) read(p *ofctrltest.Pair) chan struct{} {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.reads[p] == nil {
		z.reads[p] = make(chan struct{})
	}
	return z.reads[p]
}

func (z *interceptor) fromAgent(p *ofctrltest.Pair, m ofctrltest.Message) {
	if body := m.Body(); m.Type() == ofctrltest.MultipartRequest && len(body) >= 2 && body[1] == ofctrltest.FlowDesc {
		if read := z.read(p); !closed(read) {
			close(read) // by this goroutine alone
		}
	}
	if z.get().claim {
		switch m.Type() {
		case ofctrltest.BundleAdd:
			return
		case ofctrltest.BundleControl:
			z.told.Add(1)
			p.Controller.Write(ofctrltest.BundleDone(m))
			return
		}
	}
	switch {
	case !isFlush(m):
	case m[flushFirst] == 0 && m[flushFirst+1] != flushSource:
		z.scans.Add(1)
	case bytes.Contains(m, []byte{0xff, 0xff, 40, 0, 0}):
		z.lookups.Add(1)
	}
	if cut := z.get().cut; cut != nil && isFlush(m) {
		z.set(behaviour{})
		cut()
		p.Close()
		return
	}
	p.Switch.Write(m)
}

// flushFirst is where an NXT_CT_FLUSH has the type of its first tuple's first property; flushSource is that type if the tuple has a source, so
// that it is complete.
const flushFirst, flushSource = 32, 0

// isFlush distinguishes NXT_CT_FLUSH (experimenter 0x2320, subtype 32) from everything else, and from a probe of the address that
// documentation has (RFC 5737).
func isFlush(m ofctrltest.Message) bool {
	return m.Type() == ofctrltest.Experimenter && len(m) > flushFirst+1 && binary.BigEndian.Uint64(m[8:]) == 0x2320<<32|32 && !bytes.Contains(m, []byte{192, 0, 2, 1})
}

func (z *interceptor) fromSwitch(p *ofctrltest.Pair, m ofctrltest.Message) {
	if body := m.Body(); z.get().forget && m.Type() == ofctrltest.MultipartReply && len(body) >= 8 {
		if kind := body[1]; kind == ofctrltest.FlowDesc || kind == ofctrltest.GroupDesc {
			m = ofctrltest.NewMessage(m.Type(), m.XID(), body[:8]...)
			z.told.Add(1)
		}
	}
	p.Controller.Write(m)
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// flood waits for the handshake to be over, then floods as long as the connection lives.
func (z *interceptor) flood(p *ofctrltest.Pair) {
	select {
	case <-z.read(p):
	case <-time.After(wait.Limit): // the connection was cut before
		return
	}
	r := rand.New(rand.NewPCG(1, 2))
	for f := z.get().flood; f != nil; {
		n, err := p.Controller.Write(f(r))
		z.flooded.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// A switch that lies, or floods the agent, harms neither the agent nor the connections that the real switch carries; and as soon
// as it tells the truth again everything is as it should be. The agent's memory stays bounded.
func TestLyingSwitch(t *testing.T) {
	c := newCluster(t)
	z := c.intercept(t)
	c.makeServices()
	must(t, c.put(0))
	must(t, c.start())
	must(t, c.settle())
	fleet := c.fleet(c.stableServices())
	warm(t, fleet)
	before, err := c.resources()
	must(t, err)
	t.Log("at first: ", before)
	s := &script{cluster: c, r: rand.New(rand.NewPCG(1, 1)), count: map[string]int{}}

	// packetIn is the longest there can be, with a match of no fields and a packet of noise.
	packetIn := func(r *rand.Rand) []byte {
		body := make([]byte, 65_000)
		for i := range body {
			body[i] = byte(r.Uint32())
		}
		copy(body, []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0})
		return ofctrltest.NewMessage(ofctrltest.PacketIn, 0, body...)
	}
	for _, tc := range []struct {
		name      string
		behaviour behaviour
	}{
		{"claims success", behaviour{claim: true}},
		{"reports no flows", behaviour{forget: true}},
		{"floods echo requests", behaviour{flood: func(r *rand.Rand) []byte {
			return ofctrltest.NewMessage(ofctrltest.EchoRequest, r.Uint32(), make([]byte, 60_000)...)
		}}},
		{"floods packets", behaviour{flood: packetIn}},
		{"floods errors", behaviour{flood: func(r *rand.Rand) []byte {
			return bytes.Repeat(ofctrltest.NewMessage(ofctrltest.Error, r.Uint32()|1<<31, make([]byte, 64)...), 500)
		}}},
		{"floods barrier replies", behaviour{flood: func(r *rand.Rand) []byte {
			return bytes.Repeat(ofctrltest.NewMessage(ofctrltest.BarrierReply, r.Uint32()|1<<31), 5000)
		}}},
		{"floods news of ports", behaviour{flood: func(r *rand.Rand) []byte {
			return ofctrltest.NewMessage(ofctrltest.PortStatus, r.Uint32(), make([]byte, 1000)...)
		}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			z.told.Store(0)
			z.flooded.Store(0)
			logged := c.logSize(t)
			fleet.run(1, 5*time.Millisecond)
			z.become(tc.behaviour)
			most := 0
			for range 10 {
				must(t, s.churn(1))
				time.Sleep(100 * time.Millisecond)
				p, err := c.running()
				must(t, err)
				rss, err := resident(p.Cmd.Process.Pid, "VmRSS:")
				must(t, err)
				most = max(most, rss)
			}
			if tc.behaviour.flood == nil {
				wait.For(t, "a lie", func() bool { return z.told.Load() > 0 })
			} else {
				wait.For(t, "a flood", func() bool { return z.flooded.Load() >= 1<<20 })
			}
			if tc.behaviour.claim { // it cannot tell at once, but whoever looks can
				if text, status := c.diff(); status != 1 {
					t.Errorf("nothing was done, and diff ends with %d: %.500s", status, text)
				}
			}
			z.become(behaviour{})
			s.calm(t)
			fleet.stop()
			t.Logf("%d lies, %d MiB of flood, %d MiB resident at most, %s", z.told.Load(), z.flooded.Load()>>20, most>>20, fleet.tally)
			if more := most - before.resident; more > 64<<20 {
				t.Errorf("the agent takes %d MiB more than at first", more>>20)
			}
			if fleet.tally.failed.Load() > 0 || fleet.broken.failed.Load() > 0 {
				t.Errorf("connections failed:\n%s\n%s", fleet.tally.details(), fleet.broken.details())
			}
			if grew := c.logSize(t) - logged; grew > 200<<10 {
				t.Errorf("the log grew by %d KiB", grew>>10)
			}
		})
	}
	c.hasNotGrown(t, "at the end", before)
}

// logSize is how much the agents have said, in bytes.
func (c *cluster) logSize(t *testing.T) int64 {
	t.Helper()
	info, err := c.log.Stat()
	must(t, err)
	return info.Size()
}
