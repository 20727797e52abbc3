//go:build linux

package dpctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// clients makes UDP connections from one pod to another, of both families, which the switch tracks in zone 7.
func clients(t *testing.T, bed *testbed.Bed, n int) (ports []uint16) {
	t.Helper()
	pods, err := bed.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	for _, kind := range []string{"udp", "udp6"} {
		for _, f := range []string{"in_port=11,actions=ct(commit,zone=7),output:12", "in_port=12,actions=ct(commit,zone=7),output:11"} {
			if _, err := bed.Ofctl("add-flow", bed.Bridge, "priority=10,"+kind+","+f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := bed.Ofctl("add-flow", bed.Bridge, "priority=1,actions=NORMAL"); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		for _, to := range []string{"10.0.0.12:53", "[fd00:a::12]:53"} {
			conn, err := pods[0].DialUDP(context.Background(), to, testbed.DialOptions{LocalPort: 2000 + i})
			must(t, err)
			if _, err := conn.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
		ports = append(ports, uint16(2000+i))
	}
	return ports
}

// connections lists a zone.
func connections(ctx context.Context, tr Daemon, zone uint16) (list []Connection, err error) {
	err = tr.Each(ctx, zone, func(c *Connection) error {
		list = append(list, *c)
		return nil
	})
	return list, err
}

// Single connections are forgotten, whatever the version of the switch; those that are gone already are no error.
func TestDaemon(t *testing.T) {
	t.Parallel()
	bed := testbed.Start(t, testbed.Options{})
	const n = 25 // more than are sent at once
	clients(t, bed, n)
	tr := Find(bed.DB(), testbed.DefaultDatapath())
	ctx := t.Context()
	var list []Connection
	wait.NoError(t, "all connections to be tracked", func() (err error) {
		if list, err = connections(ctx, tr, 7); err == nil && len(list) != 2*n {
			err = fmt.Errorf("%d of %d", len(list), 2*n)
		}
		return err
	})
	kept := func(c Connection) bool { return c.Client.Port()%5 == 0 }
	gone := slices.DeleteFunc(slices.Clone(list), kept)
	for range 2 { // the second time they are gone
		must(t, tr.Forget(ctx, gone))
		left, err := connections(ctx, tr, 7)
		if err != nil || len(left) != len(list)-len(gone) || slices.ContainsFunc(left, func(c Connection) bool { return !kept(c) }) {
			t.Fatalf("%d connections are left, %v:\n%v", len(left), err, left)
		}
	}
	wrong := Daemon{Control: tr.Control, Datapath: "netdev@nowhere"}
	var refused *CommandError
	if err := wrong.Forget(ctx, gone); !errors.As(err, &refused) {
		t.Errorf("a datapath that is none: %v", err)
	}
}

func TestFind(t *testing.T) {
	if err := Find("tcp:192.0.2.1:6640", "system").Missing; err == nil || !strings.Contains(err.Error(), "tcp:192.0.2.1:6640") {
		t.Errorf("a database elsewhere: %v", err)
	}
	dir := t.TempDir()
	if _, err := Find("unix:"+dir+"/db.sock", "system").Count(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no ovs-vswitchd: %v", err)
	}
	for _, text := range []string{"x\n", "-1\n", "", "42\n"} { // the last one is a process id
		if err := Find("unix:"+dir+"/db.sock", "system").Missing; err == nil {
			t.Error("a control socket is found without a process id")
		}
		must(t, os.WriteFile(filepath.Join(dir, "ovs-vswitchd.pid"), []byte(text), 0o600))
	}
	want := Daemon{Control: filepath.Join(dir, "ovs-vswitchd.42.ctl"), Datapath: "system@ovs-system"}
	if got := Find("unix:"+dir+"/db.sock", "system"); got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
	if _, err := want.call(t.Context(), "version"); err == nil || !errors.As(err, new(*net.OpError)) {
		t.Errorf("nobody there: %v", err)
	}
}

// What it says of a connection is what ovs-vswitchd takes (ovs-dpctl(8), flush-conntrack).
func TestTuple(t *testing.T) {
	var got []string
	for _, c := range parse(dump) {
		got = append(got, fmt.Sprintln(Daemon{}.params(inZone(c.Zone)), c.tuple()))
	}
	want := []string{
		"[zone=1001] ct_nw_src=10.0.0.12,ct_nw_dst=40.0.0.2,ct_nw_proto=6,ct_tp_src=40356,ct_tp_dst=80\n",
		"[zone=1001] ct_ipv6_src=fd00:a::12,ct_ipv6_dst=fd00:40::1,ct_nw_proto=17,ct_tp_src=5,ct_tp_dst=53\n",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// fdb/show of one bridge reads the same in the form of 3.1 and in that of 4.0, both captured.
func TestLearnedText(t *testing.T) {
	for name, text := range map[string]string{
		"3.1.0": ` port  VLAN  MAC                Age
   11     0  02:00:00:00:00:11    0
LOCAL     0  02:00:00:00:00:02    1
   12    20  02:00:00:00:00:12  299
`,
		"4.0.90": ` Port  VLAN  MAC                Age
   11     0  02:00:00:00:00:11    0
LOCAL     0  02:00:00:00:00:02    1
   12    20  02:00:00:00:00:12  static
`,
	} {
		got := ""
		for line := range strings.Lines(text) {
			if port, mac, ok := parseLearned(line); ok {
				got += fmt.Sprintln(port, mac)
			}
		}
		if want := "11 02:00:00:00:00:11\n12 02:00:00:00:00:12\n"; got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// dpif/show of 3.1: the ports of another bridge, and patch ports, are left out.
func TestPortNumbers(t *testing.T) {
	text, err := json.Marshal(`netdev@ovs-netdev: hit:0 missed:0
  br-ex:
    br-ex 65534/6: (tap)
    pod-12 12/7: (system)
  br-int:
    br-int 65534/2: (tap)
    patch-ex 3/none: (patch: peer=patch-int)
    pod-11 11/5: (system: n_rxq=1)
    vxlan 4/8: (vxlan: remote_ip=10.0.0.1)
`)
	must(t, err)
	path := daemon(t, says(fmt.Sprintf(`{"id":0,"error":null,"result":%s}`, text)))
	got, err := (Daemon{Control: path}).PortNumbers(t.Context(), "br-int")
	if want := map[uint32]string{65534: "2", 11: "5", 4: "8"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
