//go:build linux

package windows

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// exitStatus returns the exit status of a program that Run ran.
func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// expect runs a command of nkp.exe and checks its exit status and what it prints.
func (h *host) expect(status int, command string, flags []string, says ...string) string {
	h.t.Helper()
	out, err := h.nkp(command, flags...)
	if got := exitStatus(err); got != status {
		h.t.Errorf("nkp %s: exit status %d, want %d (%v)\n%s", command, got, status, err, out)
	}
	for _, s := range says {
		if !strings.Contains(out, s) {
			h.t.Errorf("nkp %s does not say %q:\n%s", command, s, out)
		}
	}
	return out
}

// What an administrator can ask while the agent runs.
func TestCommandsBesideTheAgent(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.start()
	h.has(1)
	h.settled()
	h.expect(0, "status", []string{"--socket", h.pipe}, "this is Windows", "15.5, network Calico (Overlay), source VIP "+sourceVIP,
		"AclAddressLists:true", "V1:true V2:true", "RemoteSubnet:true HostRoute:true DSR:true", "SessionAffinity:true IPv6DualStack:true", "1 load balancer, 2 endpoints", "1 Service port, 1 endpoint")
	h.expect(0, "status", []string{"--socket", h.pipe, "-o", "json"}, `"hnsVersion": "15.5"`, `"AclAddressLists": true`)
	if out := h.expect(0, "diff", []string{"--socket", h.pipe}); out != "" {
		t.Errorf("diff of what was just made:\n%s", out)
	}
	h.expect(1, "run", h.args()[1:], "another nkp is running", h.pipe)
	h.expect(1, "cleanup", h.onHNS(), "nkp is running")
	h.expect(2, "status", []string{"--socket", "/run/nkp/nkp.sock"}, "is not a named pipe")
	if len(h.HNS.LoadBalancers()) != 1 || h.agent.Ended() {
		t.Error("a command harmed the agent")
	}
}

// What an administrator can ask without an agent, and how nkp goes.
func TestCommandsWithoutAgent(t *testing.T) {
	h := newHost(t, hns.NetworkOverlay, newest)
	backend := h.HNS.AddPod(h.network, "", "pod", "0E-2A-64-f4-ce-50", "100.244.206.80")
	h.HNS.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"192.0.2.1"}, "HostComputeEndpoints": []any{backend},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 1}}})
	before := h.HNS.Dump()
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1"))
	h.start()
	h.has(2)
	h.settled()
	h.agent.Kill()

	h.expect(2, "status", h.onHNS()[2:], "no nkp answers on "+h.pipe, "HNS holds 1 load balancer and 2 endpoints of nkp's")
	diff := append(h.onHNS(), h.offline()...)
	if out := h.expect(0, "diff", diff); out != "" {
		t.Errorf("diff of what was just made:\n%s", out)
	}
	h.write("one", simple("one", "10.99.3.1", "100.244.1.1", "100.244.1.2"))
	h.HNS.Calls()
	h.expect(1, "diff", diff, "create endpoint 100.244.1.2 (backend)\nmodify load balancer 10.99.3.1:80/TCP (ClusterIP, id ")
	h.expect(2, "diff", []string{"--socket", h.pipe}, "no nkp answers on "+h.pipe, "--manifests")
	for _, output := range []string{"hcn", "text"} { // on Windows text is hcn
		h.expect(0, "plan", append(h.offline(), "-o", output), `"10.99.3.1"`, `"100.244.1.2"`, `"MacAddress": "`+hostMAC+`"`)
	}
	h.expect(0, "plan", append(h.offline(), "-o", "json"), `"clusterEndpoints"`, "100.244.1.2:8080")
	if n := writes(h.HNS.Calls()); n != 0 {
		t.Errorf("diff and plan made %d changes", n)
	}
	h.expect(0, "cleanup", h.onHNS(), "removed 3 objects from HNS")
	if d := h.HNS.Dump(); d != before {
		t.Errorf("after cleanup HNS has\n%swant\n%s", d, before)
	}
	h.expect(0, "cleanup", h.onHNS(), "removed 0 objects from HNS")
}

// What a Service asks for and this HNS cannot do is said as an Event (here in the log: there is no API server) and in status.
func TestUnsupported(t *testing.T) {
	h := newHost(t, hns.NetworkL2Bridge, hns.Version{Major: 9, Minor: 2})
	h.write("one", strings.Replace(simple("one", "10.99.3.1", "100.244.1.1"), "type: ClusterIP", "type: ClusterIP, sessionAffinity: ClientIP", 1))
	h.start()
	h.has(1)
	const why = "session affinity is not kept: HNS 9.2 has no SessionAffinity (HNS 12.0 and later have it)"
	h.until("the Event is written", func() bool {
		out := h.agent.Out.String()
		return strings.Contains(out, "NotSupportedByHNS") && strings.Contains(out, why)
	})
	h.expect(0, "status", []string{"--socket", h.pipe}, "DSR:false", "SessionAffinity:false", "NOT SUPPORTED  default/one: "+why)
}
