//go:build linux

package packets

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// ovsCNI is the real ovs-cni, called as a container runtime calls it.
type ovsCNI struct {
	c      *cluster
	plugin string // the program
	path   string // CNI_PATH: the folder of host-local
	state  string // what is /var/lib/cni for it
	config string
}

// The programs are built once.
var (
	buildOVSCNI = sync.OnceValues(func() (string, error) {
		return testbed.Build("NKP_OVS_CNI", "../cni", "github.com/k8snetworkplumbingwg/ovs-cni/cmd/plugin")
	})
	buildHostLocal = sync.OnceValues(func() (string, error) {
		return testbed.Build("NKP_HOST_LOCAL", "../cni", "github.com/containernetworking/plugins/plugins/ipam/host-local")
	})
)

// withOVSCNI replaces the bed's pods by three that ovs-cni plugs in, with the same addresses, unless offload is set without
// checksum offload. options are further fields of the configuration.
func withOVSCNI(t *testing.T, c *cluster, offload bool, options string) *ovsCNI {
	t.Helper()
	plugin, err := buildOVSCNI()
	must(t, err)
	ipam, err := buildHostLocal()
	must(t, err)
	must(t, c.RemovePods(c.pods...))
	o := &ovsCNI{c: c, plugin: plugin, path: filepath.Dir(ipam), state: t.TempDir()}
	o.config = fmt.Sprintf(`{"cniVersion":"1.0.0","name":"pods","type":"ovs","bridge":%q,"socket_file":%q%s,
		"link_state_check_retries":50,"link_state_check_interval":100,
		"ipam":{"type":"host-local","dataDir":%q,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"ranges":[
			[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.11","gateway":"10.0.0.1"}],
			[{"subnet":"fd00:a::/64","rangeStart":"fd00:a::11","gateway":"fd00:a::1"}]]}}`, c.Bridge, c.DB(), options, filepath.Join(o.state, "ipam"))
	plug := func(p *testbed.Pod) error { return o.add(p, offload) }
	c.pods, err = c.AddPods(testbed.PodSpec{Plug: plug}, testbed.PodSpec{Plug: plug}, testbed.PodSpec{Plug: plug})
	must(t, err)
	return o
}

// call runs the plugin in the node's namespace with the environment of the CNI specification, section 2.
func (o *ovsCNI) call(command string, p *testbed.Pod) (string, error) {
	config := filepath.Join(o.state, "config.json")
	if err := os.WriteFile(config, []byte(o.config), 0o644); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(o.c.ctx, wait.Limit)
	defer cancel()
	// The plugin keeps what it did in /var/lib/cni, which is the test's own here.
	return o.c.Node.Exec(ctx, "unshare", "--mount", "env", "CNI_COMMAND="+command, "CNI_CONTAINERID="+p.Name, "CNI_NETNS="+p.Netns(), "CNI_IFNAME=eth0",
		"CNI_PATH="+o.path, "sh", "-ec", `mkdir -p /var/lib/cni && mount --bind "$0" /var/lib/cni && exec "$1" <"$2"`, o.state, o.plugin, config)
}

// add has the plugin plug a pod in.
func (o *ovsCNI) add(p *testbed.Pod, offload bool) error {
	out, err := o.call("ADD", p)
	if err != nil {
		return err
	}
	var result struct {
		Interfaces []struct{ Name, MAC string }
		IPs        []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return fmt.Errorf("result of ovs-cni: %w: %s", err, out)
	}
	if len(result.Interfaces) != 2 || len(result.IPs) != 2 || result.IPs[0].Address.Addr() != p.IP4 || result.IPs[1].Address.Addr() != p.IP6 {
		return fmt.Errorf("result of ovs-cni: %s", out)
	}
	p.Interface, p.MAC = result.Interfaces[0].Name, result.Interfaces[1].MAC
	number, err := o.c.Vsctl("get", "Interface", p.Interface, "ofport")
	if err != nil {
		return err
	}
	if p.OFPort, err = strconv.Atoi(strings.TrimSpace(number)); err != nil || offload {
		return err
	}
	ctx, cancel := context.WithTimeout(o.c.ctx, wait.Limit)
	defer cancel()
	_, err = p.Exec(ctx, "ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off")
	return err
}

// Pods that ovs-cni plugs in are served without any record of their addresses, by way of their gateway, and straight once the addresses
// are recorded: pods, the node and an outside client reach Services on each kind of endpoint, the client itself among them.
func TestOVSCNI(t *testing.T) {
	nightly.Only(t, "it needs ovs-cni")
	four, six := service("four", "40.0.0.1", exposed(30080)), service("six", "fd00:40::1", exposed(30081))
	udp := service("udp", "40.0.0.2", protocol(v1.ProtocolUDP))
	pinned := service("pinned", "40.0.0.3", func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP })
	empty := service("empty", "40.0.0.4")
	external := service("external", "", func(s *v1.Service) {
		s.Spec.Type, s.Spec.ClusterIPs, s.Spec.ExternalName = v1.ServiceTypeExternalName, nil, "example.com"
	})
	c := newCluster(t, testbed.Options{}, "--service-cidr", serviceCIDRs)
	o := withOVSCNI(t, c, false, "")
	c.begin(four, six, udp, pinned, empty, external)
	smoke := func(t *testing.T) {
		for _, end := range []*testbed.Pod{c.pods[1], c.remotes[0], c.pods[0]} {
			c.put(slice(four, 8080, at(end.IP4)), slice(six, 8080, at(end.IP6)), slice(udp, 8080, at(end.IP4)))
			c.settle()
			for _, from := range []*testbed.Host{c.pods[0].Host, c.Node, c.External} {
				for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80", hostPort(testbed.NodeIP4, 30080), hostPort(testbed.NodeIP6, 30081)} {
					if from != c.External || !strings.Contains(to, "40::1") && !strings.HasPrefix(to, "40.") {
						c.ask(t, from, "tcp", to, end.Name)
					}
				}
			}
			c.ask(t, c.pods[2].Host, "udp", "40.0.0.2:80", end.Name)
		}
		c.put(slice(pinned, 8080, ats(c.pods[0].IP4, c.pods[1].IP4, c.remotes[0].IP4, c.remotes[1].IP4)...))
		c.settle()
		first, err := c.pods[2].Ask(c.ctx, "tcp", "40.0.0.3:80")
		must(t, err)
		for range 10 {
			c.ask(t, c.pods[2].Host, "tcp", "40.0.0.3:80", first.Pod)
		}
		refused(t, c, c.pods[0].Host, "40.0.0.4:80")
		refused(t, c, c.pods[0].Host, "40.0.0.1:81")
	}
	c.statusSays("the switch holds what it should", "0 pod addresses")
	t.Run("gateway", smoke)
	if t.Failed() {
		return
	}
	for _, p := range c.pods {
		_, err := c.Vsctl("set", "Interface", p.Interface, fmt.Sprintf(`external_ids:attached-mac=%q`, p.MAC), fmt.Sprintf(`external_ids:ip_addresses="%v,%v"`, p.IP4, p.IP6))
		must(t, err)
	}
	c.statusSays("the switch holds what it should", "6 pod addresses")
	t.Run("straight", smoke)

	gone := c.pods[0]
	if out, err := o.call("DEL", gone); err != nil {
		t.Fatal(err, out)
	}
	c.statusSays("the switch holds what it should", "4 pod addresses")
	if ports, err := c.Vsctl("list-ports", c.Bridge); err != nil || strings.Contains(ports, gone.Interface) {
		t.Errorf("after DEL: %v %s", err, ports)
	}
}

// ovs-cni leaves checksums to the device, and the userspace datapath passes packets on as they are: TCP between pods stalls until the pods
// compute them. Datagrams of ICMP, whose checksum is no device's, pass.
func TestChecksumOffload(t *testing.T) {
	nightly.Only(t, "it needs ovs-cni")
	web := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{})
	withOVSCNI(t, c, true, "")
	c.begin(web, slice(web, 8080, at(c.pods[1].IP4)))
	for _, to := range []string{"40.0.0.1:80", hostPort(c.pods[1].IP4, 8080)} {
		c.unanswered(t, c.pods[0].Host, "tcp", to, func() {
			_, err := c.pods[0].Ping(c.ctx, c.pods[1].IP4)
			must(t, err)
		})
	}
	for _, p := range c.pods {
		if out, err := c.Exec(p.Host, "ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off"); err != nil {
			t.Fatal(err, out)
		}
	}
	for _, to := range []string{"40.0.0.1:80", hostPort(c.pods[1].IP4, 8080)} {
		c.ask(t, c.pods[0].Host, "tcp", to, c.pods[1].Name)
	}
}
