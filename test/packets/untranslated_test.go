//go:build linux

package packets

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A packet to a Service that conntrack does not translate, because its checksum is wrong or because there is no room for its connection,
// ends on the bridge, and is counted. On its way to the router it would come back until its TTL is used up.
func TestUntranslatedPacketsEnd(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--gateway-mac", testbed.GatewayMAC)
	s, sticky := service("web", "40.0.0.1", protocol(v1.ProtocolUDP)), service("sticky", "40.0.0.2", protocol(v1.ProtocolUDP), affinity(60))
	c.put(s, slice(s, 8080, ats(c.remotes[0].IP4, c.remotes[1].IP4)...), sticky, slice(sticky, 8080, ats(c.remotes[0].IP4, c.remotes[1].IP4)...))
	c.begin()
	client := c.pods[0].IP4.As4()
	from := uint32(client[0])<<24 | uint32(client[1])<<16 | uint32(client[2])<<8 | uint32(client[3])
	const packets = 20
	dropped, was := 0, c.leftByUplink(t)
	send := func(what string, spoil func(*forger)) {
		t.Helper()
		for _, to := range []string{"40.0.0.1:80", "40.0.0.2:80"} {
			f := newForger(t, c.pods[0], netip.MustParseAddrPort(to))
			spoil(f)
			for range packets {
				must(t, f.send(from))
			}
			dropped += packets
		}
		wait.NoError(t, what, func() error {
			out, err := c.Ofctl("dump-flows", c.Bridge, "cookie=0x6e6b700180000000/-1")
			must(t, err)
			n := 0
			for _, m := range regexp.MustCompile(`n_packets=(\d+).* priority=(160|214),`).FindAllStringSubmatch(out, -1) {
				k, _ := strconv.Atoi(m[1])
				n += k
			}
			if n != dropped {
				return fmt.Errorf("%d packets are dropped, want %d\n%s", n, dropped, out)
			}
			return nil
		})
		if n := c.leftByUplink(t) - was; n > packets/2 {
			t.Errorf("%s: %d packets left by the uplink", what, n)
		}
	}
	send("wrong checksums", func(f *forger) { f.frame[40], f.frame[41] = 0xde, 0xad })
	if testbed.DefaultDatapath() != testbed.UserDatapath {
		return // the kernel drops what it cannot commit
	}
	_, err := c.pods[0].Ask(c.ctx, "udp", "40.0.0.1:80") // the only connection that there is room for
	must(t, err)
	_, err = c.Appctl("dpctl/ct-set-maxconns", "1")
	must(t, err)
	send("no room", func(f *forger) { f.frame[34], f.frame[35] = 0x30, 0x39 }) // another port: a new connection
	c.eventually("the count", func() error {
		_, body, err := c.get(c.home(), "http://127.0.0.1:10249/metrics")
		if want := fmt.Sprintf("nkp_dropped_packets_total{reason=\"conntrack_invalid\"} %d\n", dropped); err == nil && !regexp.MustCompile(regexp.QuoteMeta(want)).MatchString(body) {
			err = fmt.Errorf("metrics have no %s", want)
		}
		return err
	})
}

// leftByUplink returns how many packets the switch has sent by the uplink.
func (c *cluster) leftByUplink(t *testing.T) int {
	t.Helper()
	out, err := c.Ofctl("dump-ports", c.Bridge, "1")
	must(t, err)
	m := regexp.MustCompile(`tx pkts=(\d+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatal(out)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
