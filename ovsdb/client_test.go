//go:build linux

package ovsdb_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// connect connects to the bed's database. It connects again soon.
func connect(t *testing.T, b *testbed.Bed, bridge string) *ovsdb.Client {
	t.Helper()
	c, err := ovsdb.Connect(t.Context(), ovsdb.Options{
		Endpoint: b.DB(), Bridge: bridge, Timeout: wait.Limit, MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
	})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// until waits for a snapshot, driven by Changed alone.
func until(t *testing.T, c *ovsdb.Client, what string, ok func(ovsdb.Switch) bool) ovsdb.Switch {
	t.Helper()
	late := wait.Context(t)
	for {
		if s := c.Switch(); ok(s) {
			return s
		}
		select {
		case <-c.Changed():
		case <-late.Done():
			t.Fatalf("waiting for %s; connected %v, %v\n%+v", what, c.Connected(), c.LastError(), c.Switch())
		}
	}
}

func vsctl(t *testing.T, b *testbed.Bed, args ...string) {
	t.Helper()
	if _, err := b.Vsctl(args...); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	pod, err := b.AddPod(testbed.PodSpec{Tag: 5})
	must(t, err)
	s := connect(t, b, b.Bridge).Switch()
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	if !s.Exists || s.DatapathType != "netdev" || s.FailMode != "secure" ||
		s.LocalMAC.String() != testbed.NodeMAC || s.OVSVersion == "" || len(s.Controllers) > 0 || len(s.Protocols) != 0 ||
		s.SystemIDs["system-id"] != "testbed" || len(s.Warnings) != 0 || len(s.Ports) != 2 {
		t.Errorf("%+v", s)
	}
	up, err := s.Uplink("")
	if err != nil || up.Name != testbed.UplinkName || up.OFPort != testbed.UplinkPort {
		t.Error(up, err)
	}
	p, ok := s.PortByIP(pod.IP6)
	if !ok || p.Name != pod.Interface || p.OFPort != uint32(pod.OFPort) || p.MAC.String() != pod.MAC || p.IfaceID != pod.IfaceID ||
		p.Tag != 5 || len(p.IPs) != 2 || p.IPs[0] != pod.IP4 {
		t.Errorf("%+v", p)
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	c := connect(t, b, b.Bridge)
	pods, err := b.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	until(t, c, "two pods with their numbers", func(s ovsdb.Switch) bool {
		x, _ := s.PortByName("pod-11")
		y, _ := s.PortByName("pod-12")
		return x.OFPort == 11 && y.OFPort == 12 && x.MAC.String() == pods[0].MAC
	})
	vsctl(t, b, "set", "Interface", "pod-12", "ofport_request=42")
	until(t, c, "new number", func(s ovsdb.Switch) bool {
		p, _ := s.PortByIP(pods[1].IP4)
		return p.OFPort == 42
	})
	vsctl(t, b, "set", "Interface", "pod-12", "external_ids:ip_addresses=10.0.0.99;rm")
	until(t, c, "a warning", func(s ovsdb.Switch) bool {
		p, _ := s.PortByName("pod-12")
		return len(s.Warnings) == 1 && len(p.IPs) == 0
	})
	must(t, b.RemovePods(pods...))
	until(t, c, "no pods", func(s ovsdb.Switch) bool { return len(s.Ports) == 1 })
	if _, err := b.Vsctl("add-port", b.Bridge, "nosuchdev"); err == nil {
		t.Error("a device that does not exist was added")
	}
	until(t, c, "a port that failed", func(s ovsdb.Switch) bool {
		p, _ := s.PortByName("nosuchdev")
		return p.OFPort == 0 && strings.Contains(p.Error, "could not open network device")
	})
}

func TestBridgeComesAndGoes(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	c := connect(t, b, "br-late")
	err := c.Switch().Check()
	if !errors.Is(err, ovsdb.ErrNoBridge) ||
		err.Error() != "bridge br-late does not exist; create it or name another with --bridge; bridges here: br-int" {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.AwaitBridge(ctx); !errors.Is(err, ovsdb.ErrNoBridge) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := c.EnableOpenFlow15(t.Context()); !errors.Is(err, ovsdb.ErrNoBridge) {
		t.Error(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := c.AwaitBridge(t.Context())
		got <- err
	}()
	must(t, b.AddBridge("br-late"))
	if err := <-got; err != nil {
		t.Error(err)
	}
	until(t, c, "the bridge's address", func(s ovsdb.Switch) bool { return s.LocalMAC != nil })
	vsctl(t, b, "del-br", "br-late")
	until(t, c, "no bridge", func(s ovsdb.Switch) bool { return !s.Exists && s.LocalMAC == nil })
}

func TestOpenFlow15(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{Protocols: []string{"OpenFlow13", "OpenFlow10"}})
	c := connect(t, b, b.Bridge)
	err := c.Switch().Check()
	if !errors.Is(err, ovsdb.ErrNoOpenFlow15) {
		t.Fatal(err)
	}
	if _, err := b.Ofctl("show", b.Bridge); err == nil {
		t.Fatal("the switch speaks it all the same")
	}
	_, command, _ := strings.Cut(err.Error(), "run ovs-vsctl ")
	command, _, _ = strings.Cut(command, ", or")
	if command != "set Bridge br-int protocols=OpenFlow10,OpenFlow13,OpenFlow15" {
		t.Errorf("%q", command)
	}
	must(t, c.EnableOpenFlow15(t.Context()))
	if err := c.Switch().Check(); err != nil {
		t.Error(err)
	}
	if out, err := b.Vsctl("get", "Bridge", b.Bridge, "protocols"); err != nil || out != "[OpenFlow10, OpenFlow13, OpenFlow15]\n" {
		t.Error(out, err)
	}
	if _, err := b.Ofctl("show", b.Bridge); err != nil {
		t.Error(err)
	}
	if err := c.EnableOpenFlow15(t.Context()); err != nil {
		t.Error("a second time:", err)
	}
	// The command of the message does the same.
	vsctl(t, b, "set", "Bridge", b.Bridge, "protocols=OpenFlow10,OpenFlow13")
	until(t, c, "1.5 gone", func(s ovsdb.Switch) bool { return !s.OpenFlow15 })
	vsctl(t, b, strings.Fields(command)...)
	until(t, c, "1.5 back", func(s ovsdb.Switch) bool { return s.OpenFlow15 })
	// A switch older than 2.12, as far as the database knows, has a default that must be spelled out.
	vsctl(t, b, "clear", "Bridge", b.Bridge, "protocols", "--",
		"set", "Open_vSwitch", ".", "ovs_version=2.11.9")
	until(t, c, "an old version", func(s ovsdb.Switch) bool { return !s.OpenFlow15 })
	must(t, c.EnableOpenFlow15(t.Context()))
	if s := c.Switch(); len(s.Protocols) != 6 || s.Check() != nil {
		t.Errorf("%+v", s)
	}
}

func TestOVN(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	c := connect(t, b, b.Bridge)
	for _, step := range []struct {
		set, unset []string
	}{
		{[]string{"set", "Open_vSwitch", ".", `external_ids:ovn-remote="tcp:10.0.0.1:6642"`}, []string{"remove", "Open_vSwitch", ".", "external_ids", "ovn-remote"}},
		{[]string{"set", "Bridge", b.Bridge, "external_ids:ct-zone-x_dnat=7"}, []string{"remove", "Bridge", b.Bridge, "external_ids", "ct-zone-x_dnat"}},
		{[]string{"set", "Port", "uplink", "external_ids:ovn-chassis-id=c"}, []string{"remove", "Port", "uplink", "external_ids", "ovn-chassis-id"}},
	} {
		vsctl(t, b, step.set...)
		s := until(t, c, "OVN", func(s ovsdb.Switch) bool { return errors.Is(s.Check(), ovsdb.ErrOVN) })
		if err := s.Check(); strings.Contains(err.Error(), "()") {
			t.Error(err)
		}
		if err := c.EnableOpenFlow15(t.Context()); !errors.Is(err, ovsdb.ErrOVN) {
			t.Error(err)
		}
		vsctl(t, b, step.unset...)
		until(t, c, "no OVN", func(s ovsdb.Switch) bool { return s.Check() == nil })
	}
}

// TestServerRestart deletes and adds rows while the client has no connection.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	pods, err := b.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	c := connect(t, b, b.Bridge)
	begun := time.Now()
	b.StopOvsdb()
	until(t, c, "disconnected", func(ovsdb.Switch) bool { return !c.Connected() })
	if err := c.LastError(); !errors.Is(err, ovsdb.ErrUnreachable) {
		t.Error(err)
	}
	if since, why := c.Away(); why == nil || since.Before(begun) {
		t.Errorf("away since %v: %v", since, why)
	}
	if _, ok := c.Switch().PortByName("pod-12"); !ok {
		t.Error("the last state is gone with the connection")
	}
	if err := c.EnableOpenFlow15(t.Context()); err != nil {
		t.Error(err) // nothing to do
	}
	offline(t, b, pods[1].Interface)
	must(t, b.StartOvsdb())
	s := until(t, c, "connected again", func(ovsdb.Switch) bool { return c.Connected() })
	if _, ok := s.PortByName("pod-12"); ok || len(s.Ports) != 2 {
		t.Errorf("a row deleted meanwhile is still there: %+v", s.Ports)
	}
	if since, why := c.Away(); !since.IsZero() || c.LastError() != nil {
		t.Errorf("away since %v: %v", since, why)
	}
	for range 3 {
		must(t, b.RestartOvsdb())
	}
	vsctl(t, b, "set", "Bridge", b.Bridge, "external_ids:after=restart")
	until(t, c, "changes after restarts", func(s ovsdb.Switch) bool { return s.ExternalIDs["after"] == "restart" })
}

// offline deletes a port in the database's file while its server is stopped.
func offline(t *testing.T, b *testbed.Bed, port string) {
	t.Helper()
	query := `["Open_vSwitch",{"op":"select","table":"Port","where":[["name","==","` + port + `"]],"columns":["_uuid"]}]`
	out, err := b.Exec(b.Node, "ovsdb-tool", "query", b.DBFile(), query)
	must(t, err)
	_, id, _ := strings.Cut(out, `["uuid","`)
	id, _, _ = strings.Cut(id, `"`)
	del := `["Open_vSwitch",{"op":"mutate","table":"Bridge","where":[],"mutations":[["ports","delete",["uuid","` + id + `"]]]}]`
	if out, err := b.Exec(b.Node, "ovsdb-tool", "transact", b.DBFile(), del); err != nil || !strings.Contains(out, `"count":1`) {
		t.Fatal(out, err)
	}
}

// TestCloseWhileReconnecting ends clients in each of their states.
func TestCloseWhileReconnecting(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	clients := []*ovsdb.Client{connect(t, b, b.Bridge), connect(t, b, b.Bridge)}
	clients[0].Close()
	b.StopOvsdb()
	until(t, clients[1], "disconnected", func(ovsdb.Switch) bool { return !clients[1].Connected() })
	clients[1].Close()
	clients[1].Close()
	if _, err := clients[1].AwaitBridge(t.Context()); err != nil {
		t.Error("the last snapshot has it:", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: "unix:" + dir + "/none.sock", Bridge: "br-int"})
	if !errors.Is(err, ovsdb.ErrUnreachable) || !strings.Contains(err.Error(), "--ovsdb") ||
		strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
	if _, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: "db.sock", Bridge: "br-int"}); err == nil || errors.Is(err, ovsdb.ErrUnreachable) {
		t.Error(err)
	}
	if _, err := ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: "unix:/x"}); err == nil || errors.Is(err, ovsdb.ErrUnreachable) {
		t.Error(err)
	}
}

// TestTCP connects by TCP, from inside the node's namespace.
func TestTCP(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	if _, err := b.Exec(b.Node, "ovs-appctl", "-t", b.RunDir+"/ovsdb.ctl", "ovsdb-server/add-remote", "ptcp:6640:127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	var c *ovsdb.Client
	err := b.Node.Do(func() (err error) { // the first connection is made by the calling thread
		c, err = ovsdb.Connect(t.Context(), ovsdb.Options{Endpoint: "tcp:127.0.0.1:6640", Bridge: b.Bridge, Timeout: wait.Limit})
		return err
	})
	must(t, err)
	defer c.Close()
	if s := c.Switch(); s.Check() != nil || len(s.Ports) != 1 {
		t.Errorf("%+v", s)
	}
}

// TestManyPorts adds hundreds of ports in one transaction.
func TestManyPorts(t *testing.T) {
	t.Parallel()
	b := testbed.Start(t, testbed.Options{})
	c := connect(t, b, b.Bridge)
	var args []string
	const n = 300
	for i := range n {
		name := "p" + netip.AddrFrom4([4]byte{10, 0, byte(i / 100), byte(i % 100)}).String()
		args = append(args, "--", "add-port", b.Bridge, name, "--", "set", "Interface", name, "type=dummy", "external_ids:ip_addresses="+name[1:])
	}
	// type=dummy is not known to a switch without tests: the rows are what matters.
	_, _ = b.Vsctl(append([]string{"--no-wait"}, args[1:]...)...)
	until(t, c, "all ports", func(s ovsdb.Switch) bool { return len(s.Ports) == n+1 })
	if _, ok := c.Switch().PortByIP(netip.MustParseAddr("10.0.2.99")); !ok {
		t.Error("an address is missing")
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
