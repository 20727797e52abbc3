//go:build linux

package packets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// frames counts the IPv4 frames that arrive at a device, by source and VLAN; 0: untagged.
type frames struct {
	mu   sync.Mutex // protects seen
	seen map[netip.Addr]map[int]int
}

func (f *frames) of(src netip.Addr, vlan int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[src][vlan]
}

// watchFrames counts the frames that arrive at a device of a host, until the test ends.
func watchFrames(t *testing.T, h *testbed.Host, device string) *frames {
	t.Helper()
	fd := -1
	must(t, h.Do(func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // network byte order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	}))
	f := &frames{seen: map[netip.Addr]map[int]int{}}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with the test
		defer close(done)
		b, oob := make([]byte, 1<<16), make([]byte, 256)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, auxiliary, _, from, err := unix.Recvmsg(fd, b, oob, 0)
			if err != nil || from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			f.saw(b[:n], vlanOf(oob[:auxiliary]))
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		unix.Close(fd)
	})
	return f
}

// vlanOf returns the VLAN that the kernel has taken from a frame (struct tpacket_auxdata of linux/if_packet.h).
func vlanOf(oob []byte) int {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range list {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20 &&
			binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			return int(binary.NativeEndian.Uint16(m.Data[16:]) & 0xfff)
		}
	}
	return 0
}

func (f *frames) saw(b []byte, vlan int) {
	at := 14
	if len(b) > 18 && b[12] == 0x81 && b[13] == 0 { // not taken
		vlan, at = int(binary.BigEndian.Uint16(b[14:])&0xfff), 18
	}
	if len(b) < at+20 || b[at]>>4 != 4 {
		return
	}
	src, _ := netip.AddrFromSlice(b[at+12 : at+16])
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[src] == nil {
		f.seen[src] = map[int]int{}
	}
	f.seen[src][vlan]++
}

// A pod on an access port does not leave its VLAN by way of a Service, neither untagged for the native VLAN nor with a tag of its own. An
// untagged pod's packets, by the same way, arrive.
func TestServicesKeepVLANs(t *testing.T) {
	c := newCluster(t, testbed.Options{})
	inVLAN, err := c.AddPod(testbed.PodSpec{Tag: 7})
	must(t, err)
	s := service("web", "40.0.0.1", protocol(v1.ProtocolUDP))
	c.put(s, slice(s, 8080, at(c.remotes[0].IP4)))
	c.begin()
	arrived := watchFrames(t, c.Router, c.RouterDevice())
	node, err := net.ParseMAC(testbed.NodeMAC)
	must(t, err)
	const packets, vlan = 20, 9
	send := func(from *testbed.Pod, tag bool) {
		t.Helper()
		f := newForger(t, from, netip.MustParseAddrPort("40.0.0.1:80"))
		copy(f.frame, node) // as if the node were the pod's router
		copy(f.to.Addr[:], node)
		ip := from.IP4.As4()
		copy(f.frame[26:], ip[:])
		f.sum()
		if tag {
			f.frame = slices.Insert(f.frame, 12, 0x81, 0, 0, vlan)
		}
		for range packets {
			must(t, unix.Sendto(f.fd, f.frame, 0, &f.to))
		}
	}
	send(inVLAN, false)
	send(inVLAN, true)
	send(inVLAN, false) // the last ones: the bridge floods its VLAN with them
	send(c.pods[0], false)
	wait.NoError(t, "packets of both pods", func() error {
		if in, out := arrived.of(inVLAN.IP4, 7), arrived.of(c.pods[0].IP4, 0); in < 2*packets || out < packets {
			return fmt.Errorf("%d arrived in VLAN 7 and %d untagged; want %d and %d", in, out, 2*packets, packets)
		}
		return nil
	})
	if untagged, own := arrived.of(inVLAN.IP4, 0), arrived.of(inVLAN.IP4, vlan); untagged+own > 0 {
		t.Errorf("of a pod in VLAN 7 arrived %d untagged frames, and %d in VLAN %d", untagged, own, vlan)
	}
}
