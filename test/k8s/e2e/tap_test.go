package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// leg is a way that TCP packets over IPv4 went.
type leg struct{ from, to netip.AddrPort }

// tap listens on one device of a host and counts TCP packets over IPv4, both directions.
type tap struct {
	fd   int
	mu   sync.Mutex // protects seen
	seen map[leg]int
}

// listen starts a tap; it ends with the test.
func listen(t *testing.T, h *testbed.Host, dev string) *tap {
	t.Helper()
	p := &tap{fd: -1, seen: map[leg]int{}}
	must(t, h.Do(func() error {
		ifc, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		p.fd = fd
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network byte order
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: ifc.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		)
	}))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		p.read(stop)
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		unix.Close(p.fd)
	})
	return p
}

func (p *tap) read(stop <-chan struct{}) {
	buf := make([]byte, 128)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, _, err := unix.Recvfrom(p.fd, buf, 0)
		if l, ok := parseLeg(buf[:max(n, 0)]); err == nil && ok {
			p.mu.Lock()
			p.seen[l]++
			p.mu.Unlock()
		}
	}
}

// parseLeg reads the addresses of a TCP packet from its IPv4 header on.
func parseLeg(b []byte) (leg, bool) {
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_TCP {
		return leg{}, false
	}
	header := int(b[0]&15) * 4
	if len(b) < header+4 {
		return leg{}, false
	}
	at := func(ip, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[ip:ip+4])), binary.BigEndian.Uint16(b[port:]))
	}
	return leg{at(12, header), at(16, header+2)}, true
}

// count returns how many packets went the ways that pick picks.
func (p *tap) count(pick func(leg) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l, packets := range p.seen {
		if pick(l) {
			n += packets
		}
	}
	return n
}

// forget starts over.
func (p *tap) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.seen)
}
