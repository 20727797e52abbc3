package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// lookFurther prints nkp's own status and the commands that show more.
func (s *story) lookFurther(context.Context) error {
	s.begin("How nkp is, and how to look further")
	out, _, err := s.nkpSays("status", "--socket", s.socket())
	if err != nil {
		return err
	}
	s.quote("nkp status", out)
	for _, c := range s.commands() {
		s.say("%s", s.paint(dim, "# "+c.what))
		s.say("%s", s.paint(cyan, c.line))
	}
	if !s.keep {
		s.say("%s", s.paint(dim, "# these need a running demo: KEEP=1 make demo"))
	}
	return nil
}

// hint is a command to try.
type hint struct{ what, line string }

func (s *story) commands() []hint {
	more := " \\\n    "
	source := fmt.Sprintf("--manifests %s --hostname-override %s", s.lab.manifest, nodeName)
	return []hint{
		{"what nkp would program, Service by Service, and why", fmt.Sprintf("%s plan %s%s--ovsdb %s --bridge %s --cluster-cidr %s",
			s.nkp, source, more, s.DB(), s.Bridge, clusterCIDR)},
		{"does the switch hold what it should?", fmt.Sprintf("%s diff --ovsdb %s --bridge %s --socket %s", s.nkp, s.DB(), s.Bridge, s.socket())},
		{"how is the agent?", fmt.Sprintf("%s status --socket %s", s.nkp, s.socket())},
		{"what is on the switch", fmt.Sprintf("ovs-ofctl -O OpenFlow15 dump-flows unix:%s", s.Mgmt(s.Bridge))},
		{"which pods a group chooses from", fmt.Sprintf("ovs-ofctl -O OpenFlow15 dump-groups unix:%s", s.Mgmt(s.Bridge))},
	}
}

// stay keeps everything running until ctx ends.
func (s *story) stay(ctx context.Context) {
	s.begin("Everything goes on running (KEEP=1)")
	vip, _ := s.address(frontend, "ClusterIP")
	nodePort, _ := s.address(frontend, "NodePort")
	for _, h := range []hint{
		{"a request from the client pod", s.request(s.client.Netns(), vip)},
		{"a request from outside the cluster", s.request(s.External.Netns(), nodePort)},
		{"a shell in the client pod", fmt.Sprintf("nsenter --net=%s bash", s.client.Netns())},
		{"change the Services: nkp follows this file", fmt.Sprintf("${EDITOR:-vi} %s", s.lab.manifest)},
		{"nkp's log", "tail -f " + s.logFile()},
		{"stop and clean up: Ctrl-C here, or", fmt.Sprintf("kill %d", os.Getpid())},
	} {
		s.say("%s", s.paint(dim, "# "+h.what))
		s.say("%s", s.paint(cyan, h.line))
	}
	<-ctx.Done()
}

// request is a command line that makes an HTTP request in a namespace, with what this machine has for it.
func (s *story) request(netns, addr string) string {
	enter := "nsenter --net=" + netns + " "
	for _, tool := range []string{"curl -s", "wget -qO-"} {
		name, _, _ := strings.Cut(tool, " ")
		if _, err := exec.LookPath(name); err == nil {
			return fmt.Sprintf("%s%s http://%s/", enter, tool, addr)
		}
	}
	host, port, _ := strings.Cut(addr, ":")
	return fmt.Sprintf(`%sbash -c 'exec 3<>/dev/tcp/%s/%s; printf "GET / HTTP/1.0\r\n\r\n" >&3; cat <&3'`, enter, host, port)
}
