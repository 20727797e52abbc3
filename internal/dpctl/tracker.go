package dpctl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/nkp-proxy/nkp/internal/appctl"
)

// Tracker is the connection tracker of one datapath.
type Tracker struct {
	Control  string // path of ovs-vswitchd's control socket
	Datapath string // such as system@ovs-system; "": the daemon's only one
}

// Find returns the tracker of a datapath type, with the control socket next to the database's. It does not check whether
// ovs-vswitchd answers there. A remote database (tcp:, ssl:) is an error.
func Find(database, datapathType string) (Tracker, error) {
	socket, local := strings.CutPrefix(database, "unix:")
	if !local {
		return Tracker{}, fmt.Errorf("the control socket of ovs-vswitchd is on the switch's own machine; its database is at %s", database)
	}
	control, err := appctl.Find(filepath.Dir(socket), "ovs-vswitchd")
	if err != nil {
		return Tracker{}, err
	}
	t := Tracker{Control: control}
	if datapathType != "" {
		t.Datapath = datapathType + "@ovs-" + datapathType
	}
	return t, nil
}

// Check reports whether ovs-vswitchd answers.
func (t Tracker) Check(ctx context.Context) error {
	_, err := appctl.Call(ctx, t.Control, "version")
	return err
}

// Revalidated waits until the datapath's cached flows agree with the flow tables as they are now: until a revalidation that begins after
// the call is over, the end of the next but one.
func (t Tracker) Revalidated(ctx context.Context) error {
	for range 2 {
		if _, err := appctl.Call(ctx, t.Control, "revalidator/wait"); err != nil {
			return err
		}
	}
	return nil
}

// Each calls do for each TCP, UDP and SCTP connection of a zone, as they come: memory does not grow with their number. The
// Connection is valid during the call only. An error of do ends the listing.
//
// ovs-vswitchd writes the whole list before it does anything else: 2 µs of its time for each connection of the zone.
func (t Tracker) Each(ctx context.Context, zone uint16, do func(*Connection) error) error {
	return t.each(ctx, t.params(inZone(zone)), do)
}

// MaxDetailed is the most entries of the userspace datapath's table with which callers use EachDetailed: ovs-vswitchd does nothing
// else meanwhile, for 5 µs an entry.
const MaxDetailed = 100_000

// EachDetailed is like Each, and fills in Refused and Expires. The list is twice as long.
func (t Tracker) EachDetailed(ctx context.Context, zone uint16, do func(*Connection) error) error {
	return t.each(ctx, append([]string{"-m", "-s"}, t.params(inZone(zone))...), do)
}

func (t Tracker) each(ctx context.Context, params []string, do func(*Connection) error) error {
	return appctl.Lines(ctx, t.Control, "dpctl/dump-conntrack", params, func(line []byte) error {
		if c, ok := parseConnection(string(line)); ok {
			return do(&c)
		}
		return nil
	})
}

// Learned calls do for each entry of a bridge's MAC learning table: a MAC address and its OpenFlow port. A bridge learns only from
// packets that a NORMAL action handles, and forgets after some minutes. Entries of the bridge's own port are left out.
func (t Tracker) Learned(ctx context.Context, bridge string, do func(port uint32, mac net.HardwareAddr)) error {
	return appctl.Lines(ctx, t.Control, "fdb/show", []string{bridge}, func(line []byte) error {
		words := strings.Fields(string(line)) // port, VLAN, MAC, age
		if len(words) < 4 {
			return nil
		}
		port, err := strconv.ParseUint(words[0], 10, 32)
		mac, macErr := net.ParseMAC(words[2])
		if err == nil && macErr == nil {
			do(uint32(port), mac)
		}
		return nil
	})
}

// Count returns the number of connections in all zones. The kernel datapath does not support this: the command fails.
func (t Tracker) Count(ctx context.Context) (int, error) { return t.number(ctx, "dpctl/ct-get-nconns") }

// Forget deletes connections from the tracker. One that no longer exists is no error. It continues after an error and
// returns all errors.
func (t Tracker) Forget(ctx context.Context, list []Connection) error {
	if len(list) == 0 {
		return nil
	}
	if all, err := appctl.Call(ctx, t.Control, "dpctl/dump-dps"); err != nil {
		return err
	} else if strings.TrimSpace(all) == t.Datapath {
		t.Datapath = "" // the only datapath need not be named, and Open vSwitch 3.1.0 cannot parse the name in this command
	}
	params := make([][]string, len(list))
	for i := range list {
		params[i] = t.params(inZone(list[i].Zone), list[i].tuple())
	}
	var errs []error
	err := appctl.Each(ctx, t.Control, "dpctl/flush-conntrack", params, func(i int, _ string, refused *appctl.CommandError) {
		if refused != nil && !strings.Contains(strings.ToLower(refused.Text), syscall.ENOENT.Error()) {
			errs = append(errs, fmt.Errorf("%s: %w", &list[i], refused))
		}
	})
	return errors.Join(append(errs, err)...)
}

// tuple names the connection's first direction (ovs-dpctl(8), flush-conntrack).
func (c *Connection) tuple() string {
	family := "nw"
	if c.Client.Addr().Is6() {
		family = "ipv6"
	}
	return fmt.Sprintf("ct_%s_src=%s,ct_%s_dst=%s,ct_nw_proto=%d,ct_tp_src=%d,ct_tp_dst=%d",
		family, c.Client.Addr(), family, c.Frontend.Addr(), protocolNumbers[c.Protocol], c.Client.Port(), c.Frontend.Port())
}

// params returns the parameters of a command: the datapath, if it has a name, and then others.
func (t Tracker) params(others ...string) []string {
	if t.Datapath == "" {
		return others
	}
	return append([]string{t.Datapath}, others...)
}

func inZone(zone uint16) string { return fmt.Sprintf("zone=%d", zone) }
