//go:build linux

package packets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// configMap is a directory as kubelet makes it of a ConfigMap: files are links through ..data, which is swapped.
type configMap struct {
	dir      string
	versions int
}

func (m *configMap) path() string { return filepath.Join(m.dir, "config.conf") }

func (m *configMap) write(t *testing.T, text string) {
	t.Helper()
	m.versions++
	version := nth("..version", m.versions)
	must(t, os.Mkdir(filepath.Join(m.dir, version), 0o755))
	must(t, os.WriteFile(filepath.Join(m.dir, version, "config.conf"), []byte(text), 0o644))
	must(t, os.Symlink(version, filepath.Join(m.dir, "..data.tmp")))
	must(t, os.Rename(filepath.Join(m.dir, "..data.tmp"), filepath.Join(m.dir, "..data")))
	if m.versions == 1 {
		must(t, os.Symlink("..data/config.conf", m.path()))
	}
}

// kubeProxyConfig is a KubeProxyConfiguration for the bed; more are further lines.
func kubeProxyConfig(more string) string {
	return "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" +
		"healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: 127.0.0.1:0\nclusterCIDR: 10.0.0.0/16,fd00::/16\n" + more
}

// nkp follows its configuration file. A bad one leaves everything as it is, and status says what is wrong; a good one takes
// effect in the same process, and neither an open connection nor a new one fails on the way.
func TestConfigurationFile(t *testing.T) {
	s := service("web", "40.0.0.1")
	c := newCluster(t, testbed.Options{})
	c.put(s, slice(s, 8080, at(c.pods[1].IP4)))
	c.servePods(t)
	m := &configMap{dir: t.TempDir()}
	m.write(t, kubeProxyConfig("clusterCIDRs: 10.0.0.0/8\n"))
	c.flags = []string{"--config", m.path()} // of diff, too
	c.run()
	c.settle()
	c.statusSays(`unknown field "clusterCIDRs"`)
	client, to, served := c.pods[0].Host, "40.0.0.1:80", c.pods[1].Name
	if a := c.ask(t, client, "tcp", to, served); a.Client.Addr() != c.pods[0].IP4 {
		t.Errorf("the client is seen as %s", a.Client)
	}
	before := c.status(t)
	held := c.hold(t, c.pods[0].Host, 4, to)
	load := c.underLoad(t, to)

	m.write(t, kubeProxyConfig("oomScoreAdj: 5000\n"))
	c.statusSays("configuration file has changed and cannot be used", "KubeProxyConfiguration.oomScoreAdj: Invalid value: 5000")
	c.logSays("ConfigurationRejected") // the Event on the Node
	m.write(t, kubeProxyConfig("")+"---\napiVersion: nkp-proxy.github.io/v1alpha1\nkind: NkpConfiguration\novs: {brigde: br-x}\n")
	c.statusSays("cannot be used", `unknown field "ovs.brigde"`)
	c.ask(t, client, "tcp", to, served)
	m.write(t, kubeProxyConfig("# the same as at first, but for a comment\n"))
	c.eventually("the warning is gone", func() error {
		for _, w := range c.status(t).Warnings {
			if strings.Contains(w, "cannot be used") {
				return os.ErrExist
			}
		}
		return nil
	})
	if now := c.status(t); !now.Started.Equal(before.Started) {
		t.Errorf("nkp has started again at %v, for nothing", now.Started)
	}

	m.write(t, kubeProxyConfig("iptables: {masqueradeAll: true}\noomScoreAdj: 77\n"))
	c.eventually("nkp has started again", func() error {
		out, _, status := c.nkp("status", "-o", "json", "--socket", c.socket())
		if status != 0 || strings.Contains(out, before.Started.Format(time.RFC3339Nano)) {
			return os.ErrNotExist
		}
		return nil
	})
	select {
	case <-c.agent.Done:
		t.Fatal("the process ended: ", tail(c.agent.Log.String(), 3000))
	default: // the same process id, so that no supervisor need know
	}
	c.eventually("ClusterIPs are masqueraded", func() error {
		a, err := client.Ask(c.ctx, "tcp", to)
		if err == nil && a.Client.Addr() != testbed.NodeIP4 {
			err = os.ErrInvalid
		}
		return err
	})
	c.settle()
	// What is in force is served, as kube-proxy serves it.
	addresses := regexp.MustCompile(`"serving metrics" address=(\S+)`).FindAllStringSubmatch(c.agent.Log.String(), -1)
	_, body, err := c.get(c.Node, "http://"+addresses[len(addresses)-1][1]+"/configz")
	must(t, err)
	var inForce map[string]struct {
		Kind     string
		IPTables struct{ MasqueradeAll bool }
	}
	must(t, json.Unmarshal([]byte(body), &inForce))
	if c := inForce["kubeproxy.config.k8s.io"]; c.Kind != "KubeProxyConfiguration" || !c.IPTables.MasqueradeAll {
		t.Errorf("/configz says %s", body)
	}
	checkHeld(t, "after the configuration changed", held)
	load.more(50)
	load.end()
	adj, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.agent.Cmd.Process.Pid))
	must(t, err)
	if got := strings.TrimSpace(string(adj)); got != "77" {
		t.Errorf("oom_score_adj is %s, want that of the file, 77", got)
	}

	m.write(t, kubeProxyConfig("")+"---\napiVersion: nkp-proxy.github.io/v1alpha1\nkind: NkpConfiguration\nskipServices: [default/web]\n")
	c.statusSays("1 Service left to another program of the node (--skip-services): default/web")

	// As kube-proxy is told to clean up: with its own command line.
	cleanup := append([]string{"run", "--cleanup", "--socket", c.socket()}, c.common()...)
	if _, errOut, status := c.nkp(cleanup...); status != 1 || !strings.Contains(errOut, "stop it first") {
		t.Errorf("--cleanup beside a running nkp ends with %d: %s", status, errOut)
	}
	must(c.t, c.agent.Stop(syscall.SIGTERM))
	if out, errOut, status := c.nkp(cleanup...); status != 0 || !strings.Contains(out, "removed") {
		t.Errorf("--cleanup ends with %d: %s%s", status, out, errOut)
	}
	flows, err := c.Ofctl("dump-flows", c.Bridge, "cookie=0x6e6b700000000000/0xffffff0000000000")
	must(t, err)
	if strings.Contains(flows, "cookie=") {
		t.Errorf("flows are left after --cleanup:\n%s", tail(flows, 2000))
	}
}
