//go:build linux

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/wait"
)

// serve makes a host answer on TCP 80, UDP 53 and SCTP 132.
func serve(t *testing.T, h *Host) {
	t.Helper()
	for port, f := range map[int]func(int) (*Server, error){80: h.ServeTCP, 53: h.ServeUDP, 132: h.ServeSCTP, 8080: h.ServeHTTP} {
		if _, err := f(port); err != nil {
			t.Fatal(err)
		}
	}
}

// standard builds a bed that switches plainly, with pods 11 and 12 and remote
// pod 11, all serving.
func standard(t *testing.T, o Options) (b *Bed, local []*Pod, remote *Pod) {
	t.Helper()
	b = Start(t, o)
	local, err := b.AddPods(PodSpec{}, PodSpec{})
	if err != nil {
		t.Fatal(err)
	}
	remotes, err := b.AddRemotePods(PodSpec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(local, remotes...) {
		serve(t, p.Host)
	}
	return b, local, remotes[0]
}

func port(proto string) uint16 { return map[string]uint16{"tcp": 80, "udp": 53, "sctp": 132}[proto] }

// reach asks to over every protocol and family and wants the client unchanged.
func reach(t *testing.T, from, to *Host) {
	t.Helper()
	for _, ip := range []netip.Addr{to.IP4, to.IP6} {
		if _, err := from.Ping(t.Context(), ip); err != nil {
			t.Error(err)
		}
		for _, proto := range []string{"tcp", "udp", "sctp"} {
			a, err := from.Ask(t.Context(), proto, netip.AddrPortFrom(ip, port(proto)).String())
			if err != nil {
				t.Error(err)
			} else if a.Pod != to.Name || a.Client.Addr() != from.IP(ip) {
				t.Errorf("%s %s -> %s: answered by %s, which saw %s", proto, from.Name, ip, a.Pod, a.Client)
			}
		}
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	for _, outside := range []bool{false, true} {
		t.Run(fmt.Sprintf("node outside %v", outside), func(t *testing.T) {
			t.Parallel()
			b, pods, remote := standard(t, Options{Standalone: true, NodeOutside: outside})
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
		})
	}
}

func TestSecureDropsUntilFlows(t *testing.T) {
	t.Parallel()
	b, pods, _ := standard(t, Options{Protocols: []string{"OpenFlow15"}})
	// The question ends once the switch has dropped a packet: with neither flows nor rules every packet is dropped. Its ARP
	// request may have been the packet, so that the question was never sent.
	dropped := AskOptions{Until: func(context.Context) error {
		wait.For(t, "a dropped packet", func() bool {
			out, err := b.Appctl("dpctl/dump-flows")
			return err == nil && strings.Contains(out, "actions:drop")
		})
		return nil
	}}
	if _, err := pods[0].AskWith(t.Context(), "tcp", "10.0.0.12:80", dropped); !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrUnreachable) {
		t.Fatalf("without flows: %v", err)
	}
	if _, err := b.Ofctl("add-flow", b.Bridge, "actions=normal"); err != nil {
		t.Fatal(err)
	}
	if err := b.Settle(); err != nil {
		t.Fatal(err)
	}
	reach(t, pods[0].Host, pods[1].Host)
	out, err := b.Trace(b.Bridge, "in_port=11,tcp,dl_src=02:00:00:00:00:11,dl_dst=02:00:00:00:00:12,nw_src=10.0.0.11,nw_dst=10.0.0.12,tp_dst=80")
	if err != nil || !strings.Contains(out, "Datapath actions:") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestErrorsTellWhy(t *testing.T) {
	t.Parallel()
	b, pods, _ := standard(t, Options{Standalone: true})
	errControl := errors.New("the control has failed")
	control := func(proto string, result error) AskOptions {
		return AskOptions{Until: func(ctx context.Context) error {
			_, err := pods[0].Ask(ctx, proto, netip.AddrPortFrom(pods[1].IP4, port(proto)).String())
			return errors.Join(err, result)
		}}
	}
	hangs := AskOptions{Until: func(ctx context.Context) error { <-ctx.Done(); return errControl }}
	for _, c := range []struct {
		proto, addr string
		options     AskOptions
		want        error
	}{
		{"tcp", "10.0.0.12:81", AskOptions{}, ErrRefused},
		{"udp", "10.0.0.12:81", AskOptions{}, ErrRefused},
		{"tcp", "[fd00:a::12]:81", AskOptions{}, ErrRefused},
		{"udp", "[fd00:a::12]:81", AskOptions{}, ErrRefused},
		{"udp", "203.0.113.1:53", AskOptions{}, ErrUnreachable}, // the router has no route there
		{"tcp", "203.0.113.1:53", AskOptions{}, ErrUnreachable},
		{"sctp", "10.0.0.12:9", control("sctp", nil), ErrTimeout},
		{"sctp", "10.0.0.12:9", control("tcp", errControl), errControl},
		{"tcp", "10.0.0.12:81", hangs, ErrRefused}, // an answer ends the control
		{"udp", "10.0.0.12:53", hangs, nil},
	} {
		_, err := pods[0].AskWith(t.Context(), c.proto, c.addr, c.options)
		if !errors.Is(err, c.want) {
			t.Errorf("%s %s: %v, want %v", c.proto, c.addr, err, c.want)
		}
	}
	if _, err := b.Ofctl("add-flow", b.Bridge, "priority=9,tcp,tp_dst=80,actions=drop"); err != nil {
		t.Fatal(err)
	}
	if err := b.Settle(); err != nil {
		t.Fatal(err)
	}
	if _, err := pods[0].AskWith(t.Context(), "tcp", "10.0.0.12:80", control("udp", nil)); !errors.Is(err, ErrTimeout) {
		t.Errorf("dropped: %v", err)
	}
	if _, err := b.Ofctl("add-flow", b.Bridge, "nonsense"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error of ovs-ofctl lost: %v", err)
	}
	if _, err := b.Vsctl("add-port", b.Bridge, "nosuchdev"); err == nil {
		t.Error("a port that cannot be set up passed")
	}
}

func TestClientOptions(t *testing.T) {
	t.Parallel()
	_, pods, _ := standard(t, Options{Standalone: true})
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	starting.Go(func() {
		for ctx.Err() == nil { // as other tests start programs
			_ = exec.CommandContext(ctx, "true").Run()
		}
	})
	defer starting.Wait()
	defer cancel()
	for range 50 { // the same port again at once
		a, err := pods[0].AskWith(t.Context(), "tcp", "10.0.0.12:80", AskOptions{DialOptions: DialOptions{LocalPort: 5555, Reset: true}})
		if err != nil || a.Client != netip.MustParseAddrPort("10.0.0.11:5555") {
			t.Fatal(a, err)
		}
	}
	a, err := pods[0].AskWith(t.Context(), "udp", "[fd00:a::12]:53", AskOptions{
		DialOptions: DialOptions{LocalPort: 5555}, Payload: make([]byte, 4000)})
	if err != nil || a.Client != netip.MustParseAddrPort("[fd00:a::11]:5555") || a.Bytes != 4000 {
		t.Fatal(a, err)
	}
	who, errs := pods[0].Many(t.Context(), 500, 50, "10.0.0.12:80")
	if who["pod-12"] != 500 || len(errs) > 0 {
		t.Fatal(who, errs)
	}
}

// TestTransfer moves more than a few segments, which stalls if checksums or
// segmentation were left to a device that does not do them.
func TestTransfer(t *testing.T) {
	t.Parallel()
	b, pods, remote := standard(t, Options{Standalone: true})
	for _, from := range []*Host{pods[0].Host, b.External, remote.Host, b.Node} {
		for _, ip := range []string{"10.0.0.12", "[fd00:a::12]"} {
			c, err := from.DialTCP(t.Context(), ip+":8080", DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(wait.Limit))
			fmt.Fprint(c, "GET /bytes/3000000 HTTP/1.0\r\n\r\n")
			n, buf := 0, make([]byte, 65536)
			for err == nil {
				var m int
				m, err = c.Read(buf)
				n += m
			}
			if n < 3000000 {
				t.Errorf("%s: %d bytes: %v", from.Name, n, err)
			}
			_ = c.Close()
		}
	}
}

func TestRemovePodAndAddAgain(t *testing.T) {
	t.Parallel()
	b, pods, _ := standard(t, Options{Standalone: true})
	if err := b.RemovePod(pods[1]); err != nil {
		t.Fatal(err)
	}
	if out, err := b.Vsctl("list-ports", b.Bridge); err != nil || strings.Contains(out, "pod-12") {
		t.Fatal(out, err)
	}
	p, err := b.AddPod(PodSpec{Name: "again-with-a-long-name", PointToPoint: true})
	if err != nil {
		t.Fatal(err)
	}
	if p.IP4 != netip.MustParseAddr("10.0.0.12") || p.OFPort != 12 {
		t.Fatalf("%+v", p)
	}
	serve(t, p.Host)
	reach(t, pods[0].Host, p.Host)
	if out, err := b.Vsctl("get", "Interface", p.Interface, "ofport", "external_ids"); err != nil ||
		out != "12\n{attached-mac=\"02:00:00:00:00:12\", iface-id=again-with-a-long-name, ip_addresses=\"10.0.0.12,fd00:a::12\"}\n" {
		t.Fatal(out, err)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	b, pods, _ := standard(t, Options{Standalone: true})
	held, err := pods[0].Hold(t.Context(), "10.0.0.12:80", DialOptions{})
	if err != nil || held.Who != "pod-12" {
		t.Fatal(held, err)
	}
	if err := held.Check(); err != nil {
		t.Fatal(err)
	}
	b.KillVswitchd()
	if _, err := b.Appctl("version"); err == nil {
		t.Fatal("still there")
	}
	if err := b.StartVswitchd(); err != nil {
		t.Fatal(err)
	}
	if err := held.Check(); err != nil {
		t.Fatal(err)
	}
	reach(t, b.External, pods[0].Host)
	if err := b.RestartVswitchd(); err != nil {
		t.Fatal(err)
	}
	if err := b.PauseVswitchd(true); err != nil {
		t.Fatal(err)
	}
	if err := b.PauseVswitchd(false); err != nil {
		t.Fatal(err)
	}
	if err := b.RestartOvsdb(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.AddPod(PodSpec{}); err != nil {
		t.Fatal(err)
	}
	if err := b.AddBridge("br-two"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ofctl("add-flow", "br-two", "actions=drop"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.Mgmt("br-two")); err != nil {
		t.Fatal(err)
	}
}

// TestNothingStays closes beds in every way and looks for what is left.
func TestNothingStays(t *testing.T) {
	t.Parallel()
	Require(t)
	parent := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	b, err := New(ctx, Options{Dir: parent})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.AddPod(PodSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ServeTCP(80); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "600")
	if err := p.Start(sleep); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sleep.Wait(); err == nil {
		t.Error("a process outlived its bed")
	}
	for _, d := range []*process{b.ovsdb, b.vswitchd} {
		if d.running() {
			t.Error(d.name, "runs")
		}
	}
	if left, _ := os.ReadDir(parent); len(left) > 0 {
		t.Error("left over:", left)
	}
	if _, err := b.AddPod(PodSpec{}); err == nil {
		t.Error("a closed bed takes pods")
	}
	if _, err := p.Ask(context.Background(), "tcp", "10.0.0.11:80"); err == nil {
		t.Error("a closed bed answers")
	}
}

// TestKilled kills a process that holds a bed and looks for what is left.
func TestKilled(t *testing.T) {
	t.Parallel()
	Require(t)
	parent := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestChildHoldsBed$")
	child.Env = append(os.Environ(), "TESTBED_CHILD="+parent)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscanf(out, "vswitchd %d\n", &pid)
	_ = child.Process.Kill()
	_ = child.Wait()
	if err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of ovs-vswitchd, whose test has ended", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err != nil || len(b) == 0
	})
	b, err := New(t.Context(), Options{Dir: parent})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(parent); len(left) > 0 {
		t.Error("left over:", left)
	}
}

// TestChildHoldsBed is TestKilled's other process; on its own it does nothing.
func TestChildHoldsBed(t *testing.T) {
	dir := os.Getenv("TESTBED_CHILD")
	if dir == "" {
		return
	}
	b, err := New(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("vswitchd %d\n", b.VswitchdPID())
	select {} // until it is killed
}
