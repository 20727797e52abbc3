//go:build linux

package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// TestReconnect kills ovs-vswitchd under two clients, which come back and repair.
func TestReconnect(t *testing.T) {
	t.Parallel()
	testbed.Require(t)
	bed := testbed.Start(t, testbed.Options{})
	target := Target{Network: "unix", Address: bed.Mgmt(bed.Bridge)}
	want := bigState(100)
	repaired := make(chan int, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := NewClient(target, ClientOptions{
		Options:    patient(Options{}),
		MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		OnConnect: func(ctx context.Context, c *Conn) error {
			snap, err := c.ReadBack(ctx, ownFilter)
			if err != nil {
				return err
			}
			d := flow.Diff(snap.State, want)
			if _, err := c.Commit(ctx, d); err != nil {
				return err
			}
			repaired <- len(d.SetFlows)
			return nil
		},
	})
	second := NewClient(target, ClientOptions{
		Options:    patient(Options{}),
		MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
	})
	ended := make(chan error, 2)
	go func() { ended <- first.Run(ctx) }()
	go func() { ended <- second.Run(ctx) }()
	up := func() bool { return first.Status().Connected && second.Status().Connected }
	wait.For(t, "both clients to connect", up)
	if n := <-repaired; n != 200 {
		t.Errorf("%d flows were missing", n)
	}

	bed.KillVswitchd()
	wait.For(t, "both to notice", func() bool { return !first.Status().Connected && !second.Status().Connected })
	if first.Conn() != nil {
		t.Error("a connection is offered while there is none")
	}
	wait.For(t, "attempts to be counted", func() bool { s := first.Status(); return s.Attempts > 2 && s.LastError != nil })
	must(t, bed.StartVswitchd())
	wait.For(t, "both to come back", up)
	if n := <-repaired; n != 200 {
		t.Errorf("%d flows were missing after the kill", n)
	}
	wantSame(t, mustRead(t, first.Conn()).State, want)
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// TestOnConnectFails has the repair fail twice.
func TestOnConnectFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	s, err := ofctrltest.Listen(path, ofctrltest.Options{})
	must(t, err)
	defer s.Close()
	n := 0
	c := NewClient(Target{Network: "unix", Address: path}, ClientOptions{
		Options: patient(Options{}), MinBackoff: time.Millisecond,
		OnConnect: func(context.Context, *Conn) error {
			if n++; n < 3 {
				return fmt.Errorf("failure %d", n)
			}
			return nil
		},
	})
	go c.Run(t.Context())
	wait.For(t, "the third attempt to succeed", func() bool { return c.Status().Connected })
	if s := c.Status(); s.LastError == nil || !strings.Contains(s.LastError.Error(), "failure 2") {
		t.Errorf("%+v", s)
	}
}

// TestOldBridge has a bridge without OpenFlow 1.5.
func TestOldBridge(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	if _, err := b.bed.Vsctl("set", "bridge", b.name, "protocols=OpenFlow10,OpenFlow13"); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the bridge to refuse", func() bool {
		_, err := Dial(t.Context(), b.target(), patient(Options{Bridge: b.name}))
		var v *VersionError
		return errors.As(err, &v) && v.Bridge == b.name && strings.Contains(err.Error(), "OpenFlow15") && strings.Join(v.Offers, " ") == "1.0 1.3"
	})
}

// TestForeignWideGroup has a group of somebody else whose description overflows. Reading back must neither be
// confused by it nor make ovs-vswitchd abort, which asking for all descriptions would.
func TestForeignWideGroup(t *testing.T) {
	t.Parallel()
	testbed.Require(t)
	bed := testbed.Start(t, testbed.Options{})
	b := &bridge{t: t, bed: bed, name: bed.Bridge}
	var part [2]strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&part[i/500], ",bucket=bucket_id:%d,actions=ct(commit,zone=1,nat(dst=10.0.0.1:%d),table=2,exec(move:NXM_NX_REG1[]->NXM_NX_CT_MARK[]))", i, i+1)
	}
	b.ofctl("add-group", "group_id=5,type=select"+part[0].String())
	b.ofctl("insert-buckets", "group_id=5,command_bucket_id=last"+part[1].String())
	c := b.dial(Options{})
	want := bigState(200)
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	wantSame(t, mustRead(t, c).State, want)
}
