//go:build linux

package packets

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// forger sends UDP datagrams with forged IPv4 sources from a pod.
type forger struct {
	fd    int
	frame []byte
	to    unix.SockaddrLinklayer
}

// newForger makes datagrams from port 1000 to a Service.
func newForger(t *testing.T, from *testbed.Pod, to netip.AddrPort) *forger {
	t.Helper()
	f := &forger{}
	must(t, from.Do(func() (err error) {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		f.to = unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6}
		f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { unix.Close(f.fd) })
	gateway, err := net.ParseMAC(testbed.GatewayMAC)
	must(t, err)
	own, err := net.ParseMAC(from.MAC)
	must(t, err)
	copy(f.to.Addr[:], gateway)
	dst := to.Addr().As4()
	b := append(append(f.frame, gateway...), own...)
	b = append(b, 0x08, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 0, 0, 0, 0) // IPv4, 28 bytes
	b = append(b, dst[:]...)
	b = binary.BigEndian.AppendUint16(b, 1000)
	b = binary.BigEndian.AppendUint16(b, to.Port())
	f.frame = append(b, 0, 8, 0, 0) // no data, no checksum
	return f
}

// send sends one datagram from a forged source.
func (f *forger) send(src uint32) error {
	binary.BigEndian.PutUint32(f.frame[26:], src)
	f.sum()
	return unix.Sendto(f.fd, f.frame, 0, &f.to)
}

// sum writes the checksum of the IPv4 header.
func (f *forger) sum() {
	ip := f.frame[14:34]
	ip[10], ip[11] = 0, 0
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}

// forge sends a datagram from each of n sources, slowly enough for the switch, until the Service port has want pins.
func (c *cluster) forge(t *testing.T, f *forger, first uint32, n, want int) {
	t.Helper()
	wait.NoError(t, "pins of forged sources", func() error {
		for i := range n {
			must(t, f.send(first+uint32(i)))
			if i%20 == 19 {
				time.Sleep(5 * time.Millisecond)
			}
		}
		if have := c.pins(t); have < want {
			return fmt.Errorf("%d pins, want %d", have, want)
		}
		return nil
	})
}

// Forged sources take no more pins than the limit of their Service port. Clients that have a pin keep it, others reach one
// endpoint each, and other Services keep their pins to themselves. nkp says which Service is at its limit. A higher limit comes
// into force without the loss of a pin, and the node's limit bounds all of them.
func TestPinsAreBounded(t *testing.T) {
	const limit = 300
	s := service("web", "40.0.0.1", affinity(3600), protocol(v1.ProtocolUDP))
	other := service("other", "40.0.0.2", affinity(3600))
	c := newCluster(t, testbed.Options{}, "--affinity-limit", strconv.Itoa(limit))
	c.put(s, other)
	c.servePods(t)
	ips := []netip.Addr{c.pods[1].IP4, c.pods[2].IP4, c.remotes[0].IP4, c.remotes[1].IP4}
	c.put(slice(s, 8080, ats(ips...)...), slice(other, 8080, ats(ips...)...))
	c.run()
	c.settle()
	pinned := c.askUDP(t, c.pods[0].Host)
	stays := func(client *testbed.Pod, at string) {
		t.Helper()
		for range 5 {
			if who := c.askUDP(t, client.Host); who != at {
				t.Errorf("client %s went from %s to %s", client.Name, at, who)
			}
		}
	}
	f := newForger(t, c.pods[0], netip.MustParseAddrPort("40.0.0.1:80"))
	c.forge(t, f, 11<<24, limit, limit)
	c.forge(t, f, 12<<24, 3*limit, limit) // as many again, thrice
	stays(c.pods[0], pinned)              // by the same way as the forged ones, which the switch has seen then
	must(t, c.Settle())
	if n := c.pins(t); n != limit {
		t.Fatalf("%d pins, the limit is %d", n, limit)
	}
	unpinned := c.askUDP(t, c.pods[1].Host)
	stays(c.pods[1], unpinned)
	was := c.seed(t) // it changes after each choice by it
	wait.For(t, "another seed", func() bool { return c.seed(t) != was })
	if who := c.askUDP(t, c.pods[1].Host); who != unpinned {
		t.Errorf("a client beyond the limit went from %s to %s when the seed changed", unpinned, who)
	}
	gone := 0
	wait.NoError(t, "no client chooses, and the seed stays", func() error {
		was := c.seed(t)
		_, err := c.Ofctl("del-flows", c.Bridge, fmt.Sprintf("table=10,ip,nw_src=11.0.%d.%d", gone/256, gone%256))
		must(t, err)
		gone++
		c.awaitStatus(t, "a count", func(s *api.Status) bool { return s.Affinity.Clients == limit-gone })
		if now := c.seed(t); now != was {
			return fmt.Errorf("it changes from %s to %s", was, now)
		}
		return nil
	})
	c.forge(t, f, 16<<24, 3*limit, limit)
	if n := c.pins(t); n != limit {
		t.Errorf("%d pins, the limit is %d", n, limit)
	}
	who, errs := c.pods[0].Many(c.ctx, 10, 2, "40.0.0.2:80")
	if n := c.pins(t); len(who) != 1 || len(errs) > 0 || n != limit+1 {
		t.Errorf("a client of another Service reached %v (%v); %d pins", who, errs, n)
	}
	c.awaitStatus(t, "the Service port at its limit is not named", func(s *api.Status) bool {
		return s.Affinity.Clients == limit+1 && len(s.Affinity.Full) == 1 && s.Affinity.Full[0] == "default/web:http" && !s.Affinity.Stopped &&
			strings.Contains(strings.Join(s.Warnings, "\n"), "--affinity-limit")
	})
	if out, _, _ := c.nkp("services", "--socket", c.socket()); !strings.Contains(out, "session affinity remembers 300 clients") {
		t.Errorf("nkp services:\n%s", out)
	}

	// Another limit, and one for all.
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.flags = []string{"--affinity-limit", strconv.Itoa(2 * limit), "--affinity-limit-node", strconv.Itoa(2*limit - 100)}
	c.run()
	c.settle()
	if n := c.pins(t); n != limit+1 {
		t.Errorf("%d pins after the limit was changed, had %d", n, limit+1)
	}
	c.forge(t, f, 13<<24, limit-100, 2*limit-100)
	c.awaitStatus(t, "the node's limit is not noticed", func(s *api.Status) bool { return s.Affinity.Stopped })
	have := c.pins(t)
	c.forge(t, f, 14<<24, 100, have)
	unpinned = c.askUDP(t, c.pods[2].Host)
	stays(c.pods[2], unpinned)
	if n := c.pins(t); n != have {
		t.Errorf("%d pins, had %d when learning stopped", n, have)
	}
	stays(c.pods[0], pinned)
	c.settle() // that learning has stopped is no difference
	_, err := c.Ofctl("del-flows", c.Bridge, "table=10,ip,nw_src=13.0.0.0/8")
	must(t, err)
	c.awaitStatus(t, "learning does not go on", func(s *api.Status) bool { return !s.Affinity.Stopped })
	c.forge(t, f, 15<<24, 50, c.pins(t)+50)
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.cleanup(t)
	if n := c.pins(t); n != 0 {
		t.Errorf("cleanup leaves %d pins", n)
	}
}

// seed returns the action that loads the seed of session affinity's choices.
func (c *cluster) seed(t *testing.T) string {
	t.Helper()
	out, err := c.Ofctl("dump-flows", c.Bridge, "table=17")
	must(t, err)
	_, action, _ := strings.Cut(out, "actions=")
	return action
}

// askUDP asks the Service 40.0.0.1 from a new port and returns which pod answers.
func (c *cluster) askUDP(t *testing.T, from *testbed.Host) string {
	t.Helper()
	a, err := from.Ask(c.ctx, "udp", "40.0.0.1:80")
	must(t, err)
	return a.Pod
}

// flood puts n flows on the bridge, as fast as that can be.
func (c *cluster) flood(t *testing.T, n int, make func(i int) *flow.Flow) {
	t.Helper()
	target, err := ofctrl.ParseTarget("unix:" + c.Mgmt(c.Bridge))
	must(t, err)
	conn, err := ofctrl.Dial(c.ctx, target, ofctrl.Options{EchoTimeout: 10 * wait.Limit, AnswerTimeout: 10 * wait.Limit})
	must(t, err)
	defer conn.Close()
	const batch = 20_000
	for from := 0; from < n; from += batch {
		d := &flow.Delta{}
		for i := from; i < min(n, from+batch); i++ {
			d.SetFlows = append(d.SetFlows, make(i))
		}
		_, err := conn.Commit(c.ctx, d)
		must(t, err)
	}
}

// floodSize returns how many flows the floods below plant: more than --affinity-limit-node, and than the foreign flows that nkp reads
// (ofctrl.MaxForeign). NKP_PINS=1500000 is more than any read-back takes.
func floodSize(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("NKP_PINS"))
	if err != nil {
		return bridge.DefaultAffinityNodeLimit + 10_000
	}
	return n
}

// A table full of pins, one full of flows of others, and any number of flows that others have put under nkp's cookie, do not
// keep nkp from its work: changes of another Service come in force, no transaction before them is large, audits go on, nothing of the others' is
// touched, and what is under nkp's cookie goes. The same holds of an nkp that starts then.
func TestFloodedTables(t *testing.T) {
	nightlyOr(t, "NKP_PINS", "it plants hundreds of thousands of flows")
	n := floodSize(t)
	layout := pipeline.DefaultLayout()
	cookie, _ := layout.StaticCookies()
	host := func(i int) flow.Match {
		return flow.Match{EthType: flow.EthIPv4, Src: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}), 32)}
	}
	for _, tc := range []struct {
		name string
		make func(i int) *flow.Flow
		left int // of the flood, -1: all
		says string
	}{
		{"pins", func(i int) *flow.Flow {
			m := host(i)
			m.Reg[1] = flow.Bits{Value: 7 << 8, Mask: 0xffffff00}
			return &flow.Flow{Key: flow.Key{Table: layout.PinTable(), Priority: 100, Match: m}, Cookie: cookie + 1<<32 + 7,
				Actions: []flow.Action{flow.SetField{Field: flow.Reg2, Value: 5, Mask: 0xffffffff}}}
		}, -1, "--affinity-limit-node"},
		{"flows of others", func(i int) *flow.Flow {
			return &flow.Flow{Key: flow.Key{Table: 1, Priority: 7, Match: host(i)}, Cookie: 77}
		}, -1, "flows of others"},
		{"flows under nkp's cookie", func(i int) *flow.Flow {
			return &flow.Flow{Key: flow.Key{Table: uint8(1 + 49*(i%2)), Priority: 7, Match: host(i)}, Cookie: cookie}
		}, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := service("web", "40.0.0.1")
			c := newCluster(t, testbed.Options{})
			c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
			c.servePods(t)
			c.runWith("--audit-period", "2s")
			c.settle()
			turn := 0
			change := func() {
				t.Helper()
				for range 4 {
					turn++
					to := c.remotes[turn%2]
					c.put(slice(s, 8080, at(to.IP4)))
					c.awaitAnswer(t, c.pods[0].Host, "40.0.0.1:80", to.Name)
				}
			}
			change()
			before := c.agent.Log.String()
			audits := c.status(t).Audits
			c.flood(t, n, tc.make)
			t.Logf("%d flows planted; ovs-vswitchd has %d MB, nkp %d MB", n, residentOf(t, c.VswitchdPID()), c.resident(t))
			if tc.says != "" {
				c.awaitStatus(t, "the flood is said", func(s *api.Status) bool {
					return strings.Contains(strings.Join(s.Warnings, "\n"), tc.says)
				})
			}
			c.awaitStatus(t, "an audit", func(s *api.Status) bool { return s.InStep && s.Audits > audits })
			change()
			c.settle()
			audits = c.status(t).Audits
			c.awaitStatus(t, "another audit", func(s *api.Status) bool { return s.InStep && s.Audits > audits })
			if n := c.status(t).Repairs; (n > 0) != (tc.left == 0) {
				t.Errorf("%d repairs", n)
			}
			left := func() (n int) {
				t.Helper()
				for _, match := range []string{"table=1", "table=10", "table=50"} {
					out, err := c.Ofctl("dump-aggregate", c.Bridge, match+",ip,nw_src=20.0.0.0/8")
					must(t, err)
					_, count, _ := strings.Cut(out, "flow_count=")
					k, err := strconv.Atoi(strings.TrimSpace(count))
					must(t, err)
					n += k
				}
				return n
			}
			want := map[int]int{-1: n}[tc.left]
			if left := left(); left != want {
				t.Errorf("%d flows of the flood are left, want %d", left, want)
			}
			said := strings.TrimPrefix(c.agent.Log.String(), before)
			check := func() {
				t.Helper()
				if strings.Contains(said, "reconnecting") || strings.Contains(said, "connection to the switch lost") {
					t.Errorf("the connection was lost:\n%s", tail(said, 3000))
				}
				for _, m := range regexp.MustCompile(` deleted=(\d{5,}) `).FindAllStringSubmatch(said, -1) {
					if n, _ := strconv.Atoi(m[1]); n > 20_000 {
						t.Errorf("one transaction deleted %d flows, and a change waited behind it", n)
					}
				}
				if mb := c.resident(t); mb > 250 {
					t.Errorf("nkp has %d MB", mb)
				}
			}
			check()

			must(t, c.agent.Stop(syscall.SIGTERM))
			c.runWith("--audit-period", "2s")
			c.settle()
			t.Logf("in step after a restart; nkp has %d MB", c.resident(t))
			change()
			said = c.agent.Log.String()
			check()
			if left := left(); left != want {
				t.Errorf("%d flows of the flood are left after a restart, want %d", left, want)
			}
		})
	}
}
