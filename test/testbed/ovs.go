//go:build linux

package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/test/wait"
)

// toolTimeout bounds what ovs-vsctl and ovs-appctl wait for.
var toolTimeout = fmt.Sprintf("--timeout=%.0f", wait.Limit.Seconds())

// DB is the switch's database as a connection method: unix:PATH.
func (b *Bed) DB() string { return "unix:" + b.socket() }

// DBFile is the file of the database, for ovsdb-tool while its server is stopped.
func (b *Bed) DBFile() string { return filepath.Join(b.dir.path, "conf.db") }

// Mgmt is the OpenFlow management socket of a bridge.
func (b *Bed) Mgmt(bridge string) string { return filepath.Join(b.RunDir, bridge+".mgmt") }

func (b *Bed) socket() string { return filepath.Join(b.RunDir, "db.sock") }

func (b *Bed) control() string { return filepath.Join(b.RunDir, "vswitchd.ctl") }

func (b *Bed) env() []string {
	return append(os.Environ(),
		"OVS_RUNDIR="+b.RunDir, "OVS_DBDIR="+b.dir.path, "OVS_LOGDIR="+b.dir.path, "OVS_SYSCONFDIR="+b.dir.path)
}

func (b *Bed) command(name string, args ...string) *exec.Cmd {
	path, err := lookPath(b.ovs, name)
	if err != nil {
		path = name // Start reports it
	}
	cmd := exec.Command(path, args...)
	cmd.Env = b.env()
	return cmd
}

// run runs one of the switch's tools in the node's namespace.
func (b *Bed) run(name string, args ...string) (string, string, error) {
	if b.opt.Plane == Linux {
		return "", "", errNoSwitch
	}
	return b.Node.ns.output(context.Background(), b.command(name, args...))
}

// Ofctl runs ovs-ofctl -O OpenFlow15 (unless args name a version) and returns
// exactly what it printed.
func (b *Bed) Ofctl(args ...string) (string, error) {
	if !slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(a, "-O") || strings.HasPrefix(a, "--protocols")
	}) {
		args = append([]string{"-O", "OpenFlow15"}, args...)
	}
	out, _, err := b.run("ovs-ofctl", args...)
	return out, err
}

// Vsctl runs ovs-vsctl, waits until the switch has done it, and returns exactly
// what it printed. What ovs-vsctl only warns of, a port that cannot be set up,
// is an error here. With --no-wait among args it does not wait.
func (b *Bed) Vsctl(args ...string) (string, error) {
	out, stderr, err := b.run("ovs-vsctl", append([]string{"--db=" + b.DB(), toolTimeout}, args...)...)
	if err == nil && strings.Contains(stderr, "Error detected") {
		err = fmt.Errorf("ovs-vsctl %s: %s", strings.Join(args, " "), strings.TrimSpace(stderr))
	}
	return out, err
}

// Appctl runs ovs-appctl against ovs-vswitchd and returns exactly what it
// printed.
func (b *Bed) Appctl(args ...string) (string, error) {
	out, _, err := b.run("ovs-appctl", append([]string{"-t", b.control(), toolTimeout}, args...)...)
	return out, err
}

// Trace is what ovs-vswitchd says would happen to a packet (ofproto/trace). It
// does not consult conntrack, and stops at a dp_hash: go on with a flow that
// with recirc_id and dp_hash. Tests ask so often that it starts no ovs-appctl.
func (b *Bed) Trace(bridge, flow string) (string, error) {
	return b.unixctl("ofproto/trace", bridge, flow)
}

// unixctl has ovs-vswitchd run a command over its control socket (ovs-appctl(8): JSON-RPC), and returns its
// reply.
func (b *Bed) unixctl(command string, args ...string) (string, error) {
	if b.opt.Plane == Linux {
		return "", errNoSwitch
	}
	conn, err := net.Dial("unix", b.control())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		return "", err
	}

	var reply struct {
		Result string `json:"result"`
		Error  string `json:"error"`
	}
	err = json.NewEncoder(conn).Encode(map[string]any{"id": 0, "method": command, "params": args})
	if err == nil {
		err = json.NewDecoder(conn).Decode(&reply)
	}
	if err == nil && reply.Error != "" {
		err = errors.New(reply.Error)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	return reply.Result, nil
}

// Settle waits until the datapath's cached flows agree with the OpenFlow tables.
// Without it a change of flows may take some hundred milliseconds until packets
// like those seen before notice it.
func (b *Bed) Settle() error {
	_, err := b.Appctl("revalidator/wait")
	return err
}

// Exec runs a command to its end in a host's namespace, with the environment
// that leads the switch's tools to the private switch, and returns exactly what
// it printed on standard output.
func (b *Bed) Exec(h *Host, argv ...string) (string, error) {
	out, _, err := h.ns.output(context.Background(), b.command(argv[0], argv[1:]...))
	return out, err
}

// startSwitch makes the database, starts both daemons and sets up the bridge.
func (b *Bed) startSwitch(ctx context.Context) error {
	schema, err := schema(b.ovs)
	if err != nil {
		return err
	}
	if _, _, err := b.run("ovsdb-tool", "create", b.DBFile(), schema); err != nil {
		return fmt.Errorf("testbed: %w", err)
	}
	if err := b.startOvsdb(ctx); err != nil {
		return err
	}
	if Offload() { // ovs-vswitchd reads it when it starts
		if _, err := b.Vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:hw-offload=true", "other_config:tc-policy=skip_hw"); err != nil {
			return err
		}
	}
	if err := b.spawnVswitchd(); err != nil {
		return err
	}
	mode := "secure"
	if b.opt.Standalone {
		mode = "standalone"
	}
	args := []string{
		"add-br", b.Bridge, "--",
		"set", "Bridge", b.Bridge, "datapath_type=" + b.opt.Datapath, "fail_mode=" + mode,
		"protocols=[" + strings.Join(b.opt.Protocols, ",") + "]",
		`other_config:hwaddr="` + NodeMAC + `"`, "other_config:mac-aging-time=3600", "--",
		"add-port", b.Bridge, UplinkName, "--",
		"set", "Interface", UplinkName, fmt.Sprint("ofport_request=", UplinkPort), "--",
		"set", "Open_vSwitch", ".", "external_ids:system-id=testbed",
	}
	if v := b.Version(); v != "" { // as the packages' start-up scripts do
		args = append(args, "ovs_version="+v)
	}
	if _, err := b.Vsctl(args...); err != nil {
		return errors.Join(err, b.vswitchd.failed("bridge "+b.Bridge, b.ovsdb))
	}
	return b.setUpLocal(ctx)
}

// setUpLocal waits until ovs-vswitchd serves the bridge and configures the
// bridge's own device. That one outlives a killed ovs-vswitchd, addresses and
// all, but not one that ended in order.
func (b *Bed) setUpLocal(ctx context.Context) error {
	if !b.awaitVswitchd(ctx, func() bool {
		// ovs-vswitchd sets the MAC of the device a moment after it made it: a neighbour that sees the device's
		// first, random one would send to it for a while.
		l, err := b.Node.ns.nl.LinkByName(b.Bridge)
		return err == nil && l.Attrs().HardwareAddr.String() == NodeMAC && listens(b.Mgmt(b.Bridge))
	}) {
		return b.vswitchd.failed("bridge "+b.Bridge+" is not served", b.ovsdb)
	}
	e := end{ns: b.Node.ns, name: b.Bridge, bare: b.opt.NodeOutside}
	if !b.opt.NodeOutside {
		e.addr = b.Node.prefixes(24, 64)
	}
	if err := e.up(); err != nil {
		return fmt.Errorf("testbed: %s: %w", b.Bridge, err)
	}
	if !b.awaitVswitchd(ctx, func() bool {
		l, err := b.Node.ns.nl.LinkByName(b.Bridge)
		return err == nil && l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
	}) {
		return b.vswitchd.failed("device "+b.Bridge+" has no carrier", b.ovsdb)
	}
	if b.opt.NodeOutside {
		return nil
	}
	return defaultRoutes(b.Node.ns, b.ipv4.router, RouterIP6, b.Bridge)
}

// awaitVswitchd waits until ok is true and reports whether it is; it stops when
// ovs-vswitchd ends.
func (b *Bed) awaitVswitchd(ctx context.Context, ok func() bool) bool {
	done := false
	eventually(ctx, func() bool {
		done = ok()
		return done || !b.vswitchd.running()
	})
	return done
}

// listens reports whether a server accepts connections on a socket's path.
func listens(path string) bool {
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// AddBridge adds another bridge (of the same datapath, fail mode secure, no
// uplink) to the same switch.
func (b *Bed) AddBridge(name string) error {
	_, err := b.Vsctl("add-br", name, "--", "set", "Bridge", name, "datapath_type="+b.opt.Datapath, "fail_mode=secure")
	return err
}

// StartOvsdb starts the database's server after StopOvsdb.
func (b *Bed) StartOvsdb() error { return b.startOvsdb(context.Background()) }

func (b *Bed) startOvsdb(ctx context.Context) error {
	if b.opt.Plane == Linux {
		return errNoSwitch
	}
	log := filepath.Join(b.dir.path, "ovsdb-server.log")
	p, err := b.Node.ns.daemon("ovsdb-server", log, b.command("ovsdb-server", b.DBFile(),
		"--remote=punix:"+b.socket(), "--remote=db:Open_vSwitch,Open_vSwitch,manager_options",
		"--unixctl="+filepath.Join(b.RunDir, "ovsdb.ctl"), "--log-file="+log, "-vconsole:off"))
	if err != nil {
		return err
	}
	b.ovsdb = p
	if !eventually(ctx, func() bool {
		return listens(b.socket()) || !p.running()
	}) || !p.running() {
		return p.failed("does not listen")
	}
	return nil
}

// StopOvsdb ends the database's server.
func (b *Bed) StopOvsdb() { b.ovsdb.stop(syscall.SIGTERM) }

// RestartOvsdb ends the database's server and starts it again.
func (b *Bed) RestartOvsdb() error {
	b.StopOvsdb()
	return b.StartOvsdb()
}

// PauseOvsdb stops the database's server from running without ending it (SIGSTOP)
// or lets it go on (SIGCONT).
func (b *Bed) PauseOvsdb(pause bool) error { return b.ovsdb.pause(pause) }

// PauseVswitchd stops ovs-vswitchd from running without ending it (SIGSTOP) or
// lets it go on (SIGCONT).
func (b *Bed) PauseVswitchd(pause bool) error { return b.vswitchd.pause(pause) }

func (p *process) pause(pause bool) error {
	if pause {
		return p.cmd.Process.Signal(syscall.SIGSTOP)
	}
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

func (b *Bed) spawnVswitchd() error {
	if b.opt.Plane == Linux {
		return errNoSwitch
	}
	log := filepath.Join(b.dir.path, "vswitchd.log")
	args := []string{
		b.DB(), "--no-chdir", "--unixctl=" + b.control(),
		"--pidfile=" + filepath.Join(b.RunDir, "ovs-vswitchd.pid"), "--log-file=" + log, "-vconsole:off",
	}
	if b.opt.Datapath != KernelDatapath {
		args = append(args, "--disable-system")
	}
	p, err := b.Node.ns.daemon("ovs-vswitchd", log, b.command("ovs-vswitchd", args...))
	b.vswitchd = p
	if err != nil {
		return err
	}
	// The name that the control socket has on a node, where nkp looks for it.
	return os.Symlink(filepath.Base(b.control()), filepath.Join(b.RunDir, fmt.Sprintf("ovs-vswitchd.%d.ctl", p.cmd.Process.Pid)))
}

// StartVswitchd starts ovs-vswitchd after KillVswitchd or StopVswitchd, and
// sets the addresses of LOCAL again. Flows are gone; nothing reinstalls them.
func (b *Bed) StartVswitchd() error {
	if err := b.spawnVswitchd(); err != nil {
		return err
	}
	return b.setUpLocal(context.Background())
}

// ExitVswitchd ends ovs-vswitchd as ovs-ctl does, by its command exit. The kernel datapath stays, with its cached flows.
func (b *Bed) ExitVswitchd() error {
	if _, err := b.Appctl("exit"); err != nil {
		return err
	}
	if !eventually(context.Background(), func() bool { return !b.vswitchd.running() }) {
		return b.vswitchd.failed("does not exit")
	}
	return nil
}

// StopVswitchd ends ovs-vswitchd (SIGTERM).
func (b *Bed) StopVswitchd() { b.vswitchd.stop(syscall.SIGTERM) }

// KillVswitchd kills ovs-vswitchd (SIGKILL).
func (b *Bed) KillVswitchd() { b.vswitchd.stop(syscall.SIGKILL) }

// RestartVswitchd ends ovs-vswitchd and starts it again.
func (b *Bed) RestartVswitchd() error {
	b.StopVswitchd()
	return b.StartVswitchd()
}

// VswitchdPID is the process id of ovs-vswitchd, for measuring it.
func (b *Bed) VswitchdPID() int { return b.vswitchd.cmd.Process.Pid }

// VswitchdRuns reports whether ovs-vswitchd, once started, has not ended.
func (b *Bed) VswitchdRuns() bool { return b.vswitchd.running() }

func (b *Bed) stopSwitch() {
	for _, p := range []*process{b.vswitchd, b.ovsdb} {
		if p != nil {
			p.stop(syscall.SIGKILL)
		}
	}
}
