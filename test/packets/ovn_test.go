//go:build linux

package packets

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// ovn is Open Virtual Network on a bed's node: both databases, ovn-northd, and ovn-controller, which runs the bridge br-int.
type ovn struct {
	c          *cluster
	programs   string // folder
	controller *harness.Process
}

// startOVN starts Debian's OVN, which .ci/install-deps ovn unpacks, or the one below the folder NKP_OVN.
func startOVN(t *testing.T, c *cluster) *ovn {
	t.Helper()
	root := os.Getenv("NKP_OVN")
	if root == "" {
		root = "../../bin/ovn/usr"
	}
	root, err := filepath.Abs(root)
	must(t, err)
	o := &ovn{c: c, programs: filepath.Join(root, "bin")}
	for _, name := range []string{"nb", "sb"} {
		file, socket := filepath.Join(c.RunDir, "ovn"+name+".db"), filepath.Join(c.RunDir, name)
		if out, err := c.Exec(c.Node, "ovsdb-tool", "create", file, filepath.Join(root, "share/ovn/ovn-"+name+".ovsschema")); err != nil {
			t.Fatal(err, out)
		}
		harness.Start(t, c.Node, "ovsdb-server", file, "--remote=punix:"+socket, "--unixctl="+socket+".ctl", "-vsyslog:off")
		c.eventually("OVN's database "+name, func() error {
			_, err := os.Stat(socket)
			return err
		})
	}
	harness.Start(t, c.Node, filepath.Join(o.programs, "ovn-northd"), "--ovnnb-db="+o.db("nb"), "--ovnsb-db="+o.db("sb"), "--unixctl="+filepath.Join(c.RunDir, "northd.ctl"), "-vsyslog:off")
	_, err = c.Vsctl("set", "Open_vSwitch", ".", "external_ids:ovn-remote="+strconv.Quote(o.db("sb")), "external_ids:ovn-encap-type=geneve",
		"external_ids:ovn-encap-ip=127.0.0.1", "external_ids:ovn-bridge-datapath-type="+testbed.DefaultDatapath(), "external_ids:ovn-bridge-mappings=node:"+c.Bridge)
	must(t, err)
	o.startController(t)
	return o
}

func (o *ovn) db(name string) string { return "unix:" + filepath.Join(o.c.RunDir, name) }

func (o *ovn) startController(t *testing.T) {
	t.Helper()
	o.controller = harness.Start(t, o.c.Node, "env", "OVN_RUNDIR="+o.c.RunDir, filepath.Join(o.programs, "ovn-controller"), o.c.DB(), "-vsyslog:off")
}

// nbctl changes the northbound database and waits until ovn-controller has done it.
func (o *ovn) nbctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := o.c.Exec(o.c.Node, append([]string{filepath.Join(o.programs, "ovn-nbctl"), "--db=" + o.db("nb"), "--wait=hv", "--timeout=20"}, args...)...); err != nil {
		t.Fatal(err, out)
	}
}

// plug replaces the cluster's pods by three on br-int, in one logical switch that a localnet port joins with the cluster's bridge.
func (o *ovn) plug(t *testing.T, spec testbed.PodSpec) {
	t.Helper()
	c := o.c
	must(t, c.RemovePods(c.pods...))
	c.eventually("OVN's bridge", func() error { _, err := c.Vsctl("br-exists", "br-int"); return err })
	spec.Bridge = "br-int"
	var err error
	c.pods, err = c.AddPods(spec, spec, spec)
	must(t, err)
	args := []string{"ls-add", "pods", "--", "lsp-add", "pods", "out", "--", "lsp-set-type", "out", "localnet", "--", "lsp-set-addresses", "out", "unknown",
		"--", "lsp-set-options", "out", "network_name=node"}
	for _, p := range c.pods {
		args = append(args, "--", "lsp-add", "pods", p.IfaceID, "--", "lsp-set-addresses", p.IfaceID, fmt.Sprint(p.MAC, " ", p.IP4, " ", p.IP6))
	}
	o.nbctl(t, args...)
}

// flows returns the flows of OVN's bridge, sorted, without what changes by itself.
func (o *ovn) flows(t *testing.T) []string {
	t.Helper()
	out, err := o.c.Ofctl("--no-stats", "dump-flows", "br-int")
	must(t, err)
	list := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(list)
	return list
}

// OVN runs br-int with the pods, and nkp the bridge behind it with the uplink and the node's address. A localnet port joins them: packets
// to Services leave br-int for the pods' gateway, and nkp translates them on the way. The pods' addresses are /32 and /128, so that answers
// leave br-int, too. OVN's policy holds for the connections of Services,
// each one's flows stay when the other starts, ends or is killed, and no connection fails meanwhile.
// NKP_OVN_CONNECTIONS is how many connections there are, 3,000 without it.
func TestBesideOVN(t *testing.T) {
	nightlyOr(t, "NKP_OVN_CONNECTIONS", "3,000 connections")
	four, six, guarded := service("four", "40.0.0.1", exposed(30080)), service("six", "fd00:40::1", exposed(30081)), service("guarded", "40.0.0.2")
	c := newCluster(t, testbed.Options{Bridge: "br-node"}, "--service-cidr", serviceCIDRs)
	o := startOVN(t, c)
	o.plug(t, testbed.PodSpec{PointToPoint: true})
	acls := []string{"acl-add", "pods", "to-lport", "1001", `outport == "` + c.pods[1].IfaceID + `" && tcp.dst == 9090`, "drop"}
	if onKernelDatapath() || c.Since(3, 3) { // else OVN's stateful ACLs may crash the switch: docs/cni.md
		acls = append(acls, "--", "acl-add", "pods", "to-lport", "1000", "ip", "allow-related")
	}
	o.nbctl(t, acls...)
	c.begin(four, six, guarded)
	_, err := c.pods[1].ServeTCP(9090)
	must(t, err)
	before := o.flows(t)
	if len(before) < 50 {
		t.Fatalf("OVN has %d flows", len(before))
	}

	serves := func(when string) {
		t.Helper()
		for _, end := range []*testbed.Pod{c.pods[1], c.remotes[0], c.pods[0]} {
			c.put(slice(four, 8080, at(end.IP4)), slice(six, 8080, at(end.IP6)))
			c.settle()
			for _, from := range []*testbed.Host{c.pods[0].Host, c.Node, c.External} {
				c.ask(t, from, "tcp", hostPort(testbed.NodeIP4, 30080), end.Name)
				c.ask(t, from, "tcp", hostPort(testbed.NodeIP6, 30081), end.Name)
				if from != c.External {
					c.ask(t, from, "tcp", "40.0.0.1:80", end.Name)
					c.ask(t, from, "tcp", "[fd00:40::1]:80", end.Name)
				}
			}
		}
		if t.Failed() {
			t.Fatal(when)
		}
	}
	serves("at first")
	c.put(slice(guarded, 9090, at(c.pods[1].IP4)))
	c.settle()
	c.unanswered(t, c.pods[0].Host, "tcp", "40.0.0.2:80", c.direct(t, c.pods[0].Host)) // OVN's ACL
	c.put(slice(guarded, 8080, at(c.pods[1].IP4)))
	c.settle()
	c.ask(t, c.pods[0].Host, "tcp", "40.0.0.2:80", c.pods[1].Name)

	zones, err := c.Exec(c.Node, "ovs-appctl", "-t", filepath.Join(c.RunDir, fmt.Sprintf("ovn-controller.%d.ctl", o.controller.Cmd.Process.Pid)), "ct-zone-list")
	must(t, err)
	if strings.Count(zones, "\n") < len(c.pods) {
		t.Errorf("OVN's conntrack zones: %s", zones)
	}
	for line := range strings.Lines(zones) {
		if zone, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])); err != nil || zone >= 1001 && zone <= 1003 {
			t.Errorf("a conntrack zone of nkp's, or none: %v %s", err, line)
		}
	}

	c.put(slice(four, 8080, ats(c.pods[1].IP4, c.pods[2].IP4, c.remotes[0].IP4)...))
	c.settle()
	held := c.hold(t, c.pods[0].Host, 6, "40.0.0.1:80")
	want := int64(3000)
	if n := os.Getenv("NKP_OVN_CONNECTIONS"); n != "" {
		want, err = strconv.ParseInt(n, 10, 64)
		must(t, err)
	}
	loads := []*load{
		c.load(t, c.pods[0].Host, "40.0.0.1:80", 2, 0),
		c.load(t, c.remotes[1].Host, hostPort(testbed.NodeIP4, 30080), 2, 0),
	}
	more := func() { // a sixth
		for _, l := range loads {
			l.more(want / 12)
		}
	}
	at := func(what string, f func()) {
		t.Helper()
		more()
		f()
		checkHeld(t, what, held)
	}
	at("with ovn-controller killed", o.controller.Kill)
	at("with ovn-controller started again", func() { o.startController(t) })
	at("with nkp killed", c.agent.Kill)
	at("with nkp started again", func() { c.run(); c.settle() })
	at("with a pod more in OVN", func() {
		o.nbctl(t, "lsp-add", "pods", "another", "--", "lsp-set-addresses", "another", "02:00:00:00:00:99 10.0.0.99")
		o.nbctl(t, "lsp-del", "another")
	})
	more()
	for _, l := range loads {
		l.end()
	}
	checkHeld(t, "in the end", held)
	c.settle() // compares nkp's flows

	serves("in the end")
	must(t, c.agent.Stop(syscall.SIGTERM))
	c.cleanup(t)
	if after := o.flows(t); !slices.Equal(before, after) {
		t.Errorf("OVN's flows are not as before: %d, then %d", len(before), len(after))
	}
}

// Pods of one logical switch answer each other inside br-int, past nkp, so that a client there does not get the answer of a Service's
// endpoint. --masquerade-all brings the answers back: they go to the node.
func TestAnswersInsideOVN(t *testing.T) {
	nightly.Only(t, "it needs OVN")
	for name, flags := range map[string][]string{"by default": nil, "masquerade-all": {"--masquerade-all"}} {
		t.Run(name, func(t *testing.T) {
			four, six := service("four", "40.0.0.1"), service("six", "fd00:40::1")
			c := newCluster(t, testbed.Options{Bridge: "br-node"}, append(flags, "--service-cidr", serviceCIDRs)...)
			startOVN(t, c).plug(t, testbed.PodSpec{})
			c.begin(four, six)
			for _, end := range []*testbed.Pod{c.remotes[0], c.pods[0], c.pods[1]} {
				c.put(slice(four, 8080, at(end.IP4)), slice(six, 8080, at(end.IP6)))
				c.settle()
				for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80"} {
					if end == c.pods[1] && flags == nil {
						c.unanswered(t, c.pods[0].Host, "tcp", to, c.direct(t, c.pods[0].Host))
					} else {
						c.ask(t, c.pods[0].Host, "tcp", to, end.Name)
					}
				}
			}
		})
	}
}

// nkp refuses the bridge that OVN runs, where ovn-controller deletes flows that it does not know.
func TestNotOnOVNsBridge(t *testing.T) {
	nightly.Only(t, "it needs OVN; TestUnfitSwitches has the mark in the database")
	c := newCluster(t, testbed.Options{Bridge: "br-node"})
	o := startOVN(t, c)
	o.plug(t, testbed.PodSpec{})
	_, err := c.Ofctl("add-flow", "br-int", "table=77,priority=1,cookie=0x6e6b700000000000,actions=drop")
	must(t, err)
	o.controller.Kill()
	o.startController(t)
	c.flowsHave(false, "br-int", "table=77", "0x6e6b70") // ovn-controller deletes a flow that it does not know
	c.put(service("web", "40.0.0.1"))
	out, errOut, status := c.nkp("run", "--manifests", c.manifest, "--ovsdb", c.DB(), "--bridge", "br-int", "--hostname-override", nodeName, "--socket", c.socket(), "--ovs-wait", "1s")
	if status != 1 || !strings.Contains(errOut, "bridge br-int is run by OVN") {
		t.Errorf("nkp on OVN's bridge ends with %d: %s%s", status, out, errOut)
	}
}
