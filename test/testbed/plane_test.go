//go:build linux

package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
)

// On the Linux plane everybody reaches everybody with the same addresses as on the
// switch's, and no daemon runs.
func TestLinuxPlane(t *testing.T) {
	t.Parallel()
	for _, bridge := range []bool{false, true} {
		t.Run(fmt.Sprintf("pod bridge %v", bridge), func(t *testing.T) {
			t.Parallel()
			b, pods, remote := standard(t, Options{Plane: Linux, PodBridge: bridge})
			serve(t, b.Node)
			serve(t, b.External)
			reach(t, pods[0].Host, pods[1].Host)
			reach(t, pods[0].Host, remote.Host)
			reach(t, remote.Host, pods[1].Host)
			reach(t, pods[0].Host, b.Node)
			reach(t, b.Node, pods[0].Host)
			reach(t, b.External, b.Node)
			reach(t, b.External, pods[0].Host)
			reach(t, b.Remote, b.Node)
			reach(t, remote.Host, b.External)
			if b.ovsdb != nil || b.vswitchd != nil {
				t.Error("a daemon of the switch runs")
			}
			if err := b.RemovePod(pods[1]); err != nil {
				t.Fatal(err)
			}
			again, err := b.AddPod(PodSpec{Name: "again"})
			if err != nil {
				t.Fatal(err)
			}
			serve(t, again.Host)
			reach(t, pods[0].Host, again.Host)
			if again.IP4 != pods[1].IP4 || again.OFPort != 0 {
				t.Errorf("%+v", again)
			}
		})
	}
}

// The pods' links have names that begin alike, as kube-proxy's
// --pod-interface-name-prefix needs, and packets of pods come in by them.
func TestLinuxPlaneInterfaces(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Plane: Linux})
	p, err := b.AddPod(PodSpec{})
	if err != nil {
		t.Fatal(err)
	}
	var dev *net.Interface
	if err := b.Node.Do(func() (err error) {
		dev, err = net.InterfaceByName("pod-11")
		return err
	}); err != nil || p.Interface != dev.Name {
		t.Fatal(p.Interface, err)
	}
	if dev.HardwareAddr.String() != GatewayMAC {
		t.Errorf("the pod's gateway is %s", dev.HardwareAddr)
	}
	// A service address without rules goes round between node and router until it expires.
	if _, err := p.Ask(t.Context(), "udp", netip.AddrPortFrom(nth(ServiceRanges[0], 1), 80).String()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("an address that nobody has: %v", err)
	}
}

// What needs the switch says at once that there is none.
func TestLinuxPlaneHasNoSwitch(t *testing.T) {
	t.Parallel()
	b := Start(t, Options{Plane: Linux})
	for name, f := range map[string]func() error{
		"Vsctl":         func() error { _, err := b.Vsctl("show"); return err },
		"Ofctl":         func() error { _, err := b.Ofctl("show", b.Bridge); return err },
		"Appctl":        func() error { _, err := b.Appctl("version"); return err },
		"Trace":         func() error { _, err := b.Trace(b.Bridge, "arp"); return err },
		"AddBridge":     func() error { return b.AddBridge("br-two") },
		"StartVswitchd": b.StartVswitchd,
		"StartOvsdb":    b.StartOvsdb,
		"AddPod":        func() error { _, err := b.AddPod(PodSpec{Tag: 7}); return err },
	} {
		if err := f(); !errors.Is(err, errNoSwitch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(b.RunDir); err != nil {
		t.Error(err)
	}
	if b, err := New(t.Context(), Options{PodBridge: true}); err == nil {
		_ = b.Close()
		t.Error("the kernel's bridge beside the switch")
	}
	if b, err := New(t.Context(), Options{Plane: "hovercraft"}); err == nil {
		_ = b.Close()
		t.Error("an unknown plane")
	}
}
