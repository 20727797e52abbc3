package dpctl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
)

// Revalidated waits until the datapath's cached flows agree with the flow tables as they are now: until a
// revalidation that begins after the call is over, the end of the next but one.
func (t Daemon) Revalidated(ctx context.Context) error {
	for range 2 {
		if _, err := t.call(ctx, "revalidator/wait"); err != nil {
			return err
		}
	}
	return nil
}

// Each calls do for each TCP, UDP and SCTP connection of a zone, as they come: memory does not grow with
// their number. The Connection is valid during the call only. An error of do ends the listing.
//
// ovs-vswitchd writes the whole list before it does anything else: 2 µs of its time for each connection of
// the zone.
func (t Daemon) Each(ctx context.Context, zone uint16, do func(*Connection) error) error {
	return t.dump(ctx, t.params(inZone(zone)), do)
}

// MaxDetailed is the most entries of the userspace datapath's table with which callers use EachDetailed:
// ovs-vswitchd does nothing else meanwhile, for 5 µs an entry.
const MaxDetailed = 100_000

// EachDetailed is like Each, and fills in Refused and Expires. The list is twice as long.
func (t Daemon) EachDetailed(ctx context.Context, zone uint16, do func(*Connection) error) error {
	return t.dump(ctx, append([]string{"-m", "-s"}, t.params(inZone(zone))...), do)
}

func (t Daemon) dump(ctx context.Context, params []string, do func(*Connection) error) error {
	return t.lines(ctx, "dpctl/dump-conntrack", params, func(line []byte) error {
		if c, ok := parseConnection(string(line)); ok {
			return do(&c)
		}
		return nil
	})
}

// Learned calls do for each entry of a bridge's MAC learning table: a MAC address and its OpenFlow port. A
// bridge learns only from packets that a NORMAL action handles, and forgets after some minutes. Entries of
// the bridge's own port are left out.
func (t Daemon) Learned(
	ctx context.Context,
	bridge string,
	do func(port uint32, mac net.HardwareAddr),
) error {
	return t.lines(ctx, "fdb/show", []string{bridge}, func(line []byte) error {
		if port, mac, ok := parseLearned(string(line)); ok {
			do(port, mac)
		}
		return nil
	})
}

// parseLearned reads a line of fdb/show for one bridge: port, VLAN, MAC, age. Since Open vSwitch 4.0 the
// answer for several bridges has a column more, and its JSON another form; neither is asked for.
func parseLearned(line string) (port uint32, mac net.HardwareAddr, ok bool) {
	words := strings.Fields(line)
	if len(words) < 4 {
		return 0, nil, false
	}
	n, err := strconv.ParseUint(words[0], 10, 32)
	mac, macErr := net.ParseMAC(words[2])
	return uint32(n), mac, err == nil && macErr == nil
}

// PortNumbers returns the datapath's numbers of a bridge's ports, as datapath actions have them, by their
// OpenFlow numbers. Ports that are not the datapath's, such as patch ports, are left out.
func (t Daemon) PortNumbers(ctx context.Context, bridge string) (map[uint32]string, error) {
	numbers, within := map[uint32]string{}, false
	err := t.lines(ctx, "dpif/show", nil, func(line []byte) error {
		if name, isBridge := strings.CutSuffix(strings.TrimSpace(string(line)), ":"); isBridge {
			within = name == bridge
		} else if port, number, ok := parsePortNumber(string(line)); ok && within {
			numbers[port] = number
		}
		return nil
	})
	return numbers, err
}

// parsePortNumber reads a line of dpif/show: name, OpenFlow number/datapath number: (type).
func parsePortNumber(line string) (port uint32, number string, ok bool) {
	words := strings.Fields(line)
	if len(words) < 3 || !strings.HasSuffix(words[1], ":") {
		return 0, "", false
	}
	of, number, _ := strings.Cut(strings.TrimSuffix(words[1], ":"), "/")
	n, err := strconv.ParseUint(of, 10, 32)
	_, none := strconv.ParseUint(number, 10, 32)
	return uint32(n), number, err == nil && none == nil
}

// Count returns the number of connections in all zones. The kernel datapath does not support this: the
// command fails.
func (t Daemon) Count(ctx context.Context) (int, error) { return t.number(ctx, "dpctl/ct-get-nconns") }

// Forget deletes connections from the tracker. One that no longer exists is no error. It continues after an
// error and returns all errors.
func (t Daemon) Forget(ctx context.Context, list []Connection) error {
	if len(list) == 0 {
		return nil
	}
	if all, err := t.call(ctx, "dpctl/dump-dps"); err != nil {
		return err
	} else if strings.TrimSpace(all) == t.Datapath {
		// The only datapath need not be named, and Open vSwitch 3.1.0 cannot parse the name in this command.
		t.Datapath = ""
	}
	params := make([][]string, len(list))
	for i := range list {
		params[i] = t.params(inZone(list[i].Zone), list[i].tuple())
	}
	var errs []error
	err := t.each(ctx, "dpctl/flush-conntrack", params, func(i int, _ string, refused *CommandError) {
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
		family, c.Client.Addr(), family, c.Frontend.Addr(), c.IPProto(), c.Client.Port(),
		c.Frontend.Port())
}

// params returns the parameters of a command: the datapath, if it has a name, and then others.
func (t Daemon) params(others ...string) []string {
	if t.Datapath == "" {
		return others
	}
	return append([]string{t.Datapath}, others...)
}

func inZone(zone uint16) string { return fmt.Sprintf("zone=%d", zone) }
