//go:build linux

package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// nsxFlows are those of the NSX kube proxy, for one Service with one endpoint, as its document has them.
func nsxFlows(vip, endpoint string) (groups, flows []string) {
	return []string{
			"group_id=100,type=select,bucket=weight=100,ct(nat(dst=" + endpoint + "),commit,table=2)",
		}, []string{
			"table=0,priority=100,ip,actions=ct(table=1)",
			"table=0,priority=0,actions=normal",
			"table=1,priority=90,ip,in_port=1,actions=ct(table=2,nat)",
			"table=1,priority=80,ip,actions=normal",
			"table=1,priority=100,ip,nw_dst=" + vip + ",ip_proto=6,tcp_dst=80,actions=set_field:80->tcp_dst,group:100",
			"table=2,actions=normal",
		}
}

// nkp takes over a bridge from the NSX kube proxy as docs/nsx.md says.
func TestFromNSX(t *testing.T) {
	testbed.Require(t)
	bed := testbed.Start(t, testbed.Options{Standalone: true})
	client, err := bed.AddPod(testbed.PodSpec{})
	must(t, err)
	remotes, err := bed.AddRemotePods(testbed.PodSpec{}) // answers are translated back at the uplink only
	must(t, err)
	web := remotes[0]
	_, err = web.ServeTCP(8080)
	must(t, err)
	groups, flows := nsxFlows("40.0.0.10", web.IP4.String()+":8080")
	for _, g := range groups {
		_, err := bed.Ofctl("add-group", bed.Bridge, g)
		must(t, err)
	}
	for _, f := range flows {
		_, err := bed.Ofctl("add-flow", bed.Bridge, f)
		must(t, err)
	}
	manifest := filepath.Join(t.TempDir(), "web.yaml")
	must(t, os.WriteFile(manifest, fmt.Appendf(nil, webManifest, testbed.NodeIP4, web.IP4), 0o644))
	bin := distFile(t, "nkp-linux-amd64")
	flags := []string{"--manifests", manifest, "--ovsdb", bed.DB(), "--bridge", bed.Bridge, "--hostname-override", "node-1", "--cluster-cidr", "10.0.0.0/16"}
	sock := filepath.Join(bed.RunDir, "nkp.sock")
	ask := func() error {
		_, err := client.Ask(t.Context(), "tcp", webVIP) // which asks again and again while nobody serves
		return err
	}
	must(t, ask()) // the NSX kube proxy's flows serve

	for _, f := range []string{"table=0,priority=100,ip", "table=1,priority=90,ip,in_port=1", "table=1,priority=80,ip", "table=1,priority=100,tcp,nw_dst=40.0.0.10,tp_dst=80", "table=2,priority=32768"} {
		_, err := bed.Ofctl("--strict", "del-flows", bed.Bridge, f)
		must(t, err)
	}
	_, err = bed.Ofctl("del-groups", bed.Bridge, "group_id=100")
	must(t, err)
	var log strings.Builder
	agent := exec.Command(bin, append([]string{"run", "--mode", "ovs", "--socket", sock, "--healthz-bind-address="}, flags...)...)
	agent.Stdout, agent.Stderr = &log, &log
	must(t, bed.Node.Start(agent))
	t.Cleanup(func() {
		agent.Process.Signal(syscall.SIGTERM)
		agent.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	wait.NoError(t, "nkp serves", ask)
	diff := func() error {
		out, err := bed.Node.Exec(t.Context(), append([]string{bin, "diff", "--socket", sock}, flags...)...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	wait.NoError(t, "nkp is in step", diff)
	rest, err := bed.Ofctl("dump-flows", "--no-stats", bed.Bridge, "cookie=0/-1")
	must(t, err)
	for line := range strings.Lines(rest) {
		if own := strings.Contains(line, "table=254,") || strings.TrimSpace(line) == "priority=0 actions=NORMAL"; strings.Contains(line, "actions=") && !own {
			t.Errorf("a flow of the NSX kube proxy is left: %s", line)
		}
	}
}
