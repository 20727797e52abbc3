package command

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/mode"
)

// A flag of nkp's own without effect in the mode is an error; one of kube-proxy's is accepted everywhere. The table has all flags that
// do not apply in every mode.
func TestFlagsOfModes(t *testing.T) {
	limited := map[string]string{
		"iptables-backend":  "ovs iptables",
		"affinity-limit":    "ovs nftables",
		"node-mac":          "ovs windows",
		"answer-ping":       "ovs nftables iptables",
		"healthz-data-path": "ovs nftables iptables",
		"hns-state-file":    "windows",
		"hns-take-over":     "windows",
		"audit-period":      "ovs",
		"local-delivery":    "ovs",
		"service-counters":  "ovs",
		"port-reuse-guards": "ovs",
	}
	for name := range strings.FieldsSeq("nftables-service-counters nftables-flowtable-devices") {
		limited[name] = "ovs nftables"
	}
	for name := range strings.FieldsSeq(`ovsdb bridge ca-cert certificate private-key any-certificate-name openflow configure-bridge ovs-wait uplink-port
		allow-stateful-policies gateway-mac ports hairpin-ip host-traffic reject-rate affinity-limit-node table-base next-table cookie-prefix group-base meter exit-register zone-dnat zone-snat`) {
		limited[name] = "ovs"
	}
	s := newSettings()
	cmd := &cobra.Command{}
	s.runFlags(cmd.Flags())
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		in := limited[f.Name]
		delete(limited, f.Name)
		if in != "" && ofKubeProxy(f.Name) {
			t.Errorf("--%s is kube-proxy's: it must be accepted in every mode", f.Name)
		}
		c := configuration{flags: cmd.Flags(), explicit: map[string]string{f.Name: ""}}
		for _, m := range []mode.Mode{mode.OVS, mode.NFTables, mode.IPTables, mode.Windows} {
			works := in == "" || slices.Contains(strings.Fields(in), string(m))
			if err := c.checkMode(m); (err == nil) != works || !works && !strings.Contains(err.Error(), "--"+f.Name) {
				t.Errorf("--%s in mode %s: %v", f.Name, m, err)
			}
		}
	})
	if len(limited) > 0 {
		t.Errorf("run has no such flags: %v", limited)
	}
}

// diff and trace without a source ask the agent, and take no flag for which it has no use: not one of all their flags.
func TestFlagsForAnAgent(t *testing.T) {
	for _, cmd := range []*cobra.Command{newDiff(thisMachine()), newTrace(thisMachine())} {
		kept := strings.Fields("config socket output help from to protocol in live probe reply follow")
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			c := configuration{flags: cmd.Flags(), explicit: map[string]string{f.Name: ""}}
			if err := c.checkAgent(); (err == nil) != slices.Contains(kept, f.Name) {
				t.Errorf("%s --%s: %v", cmd.Name(), f.Name, err)
			}
		})
	}
}

// The errors reach the command line.
func TestFlagsWithoutEffect(t *testing.T) {
	samples := "--manifests=../../examples/guestbook.yaml --hostname-override=haofan-test-1"
	trace := "trace --from 10.0.0.1 --to 10.0.0.2:80"
	for line, want := range map[string]string{
		"diff --bridge nope":                                    "without effect: --bridge. The running agent answers by its own settings",
		"diff --masquerade-all":                                 "--masquerade-all",
		"diff --hns-take-over":                                  "--hns-take-over",
		trace + " --ovsdb unix:/x":                              "--ovsdb",
		trace + " --mode=auto":                                  "--mode",
		"run --mode=nftables --bridge nope " + samples:          "without effect in mode nftables: --bridge;",
		"plan --mode=iptables --affinity-limit=5 " + samples:    "--affinity-limit",
		"plan --mode=ovs --hns-state-file=x " + samples:         "--hns-state-file",
		trace + " --mode=nftables --uplink-port=5 " + samples:   "--uplink-port",
		"cleanup --mode=iptables --table-base=4":                "--table-base",
		"diff --mode=windows --openflow=tcp:1.2.3.4 " + samples: "--openflow",
	} {
		var out, errOut bytes.Buffer
		if status := Main("nkp", strings.Fields(line), &out, &errOut); status != exitUsage || !strings.Contains(errOut.String(), want) {
			t.Errorf("nkp %s ends with %d: %s", line, status, &errOut)
		}
	}
	var out, errOut bytes.Buffer
	line := "plan --mode=nftables --network-name=x " + samples
	if status := Main("nkp", strings.Fields(line), &out, &errOut); status != 0 ||
		!strings.Contains(errOut.String(), "flags that have no effect in mode nftables: --network-name") {
		t.Errorf("nkp %s ends with %d: %s", line, status, &errOut)
	}
}
