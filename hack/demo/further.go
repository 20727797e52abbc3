//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// lookFurther prints nkp's own status and the commands that show more.
func (s *story) lookFurther(context.Context) error {
	s.begin("How nkp is, and how to look further")
	out, _, err := s.nkpSays("status", "--socket", s.socket())
	if err != nil {
		return err
	}
	s.quote(s.config.asGiven+" status --socket "+s.socket(), out)
	for _, c := range s.commands() {
		s.say("%s", s.paint(dim, "# "+c.what))
		s.say("%s", s.paint(cyan, c.line))
	}
	if !s.config.keep {
		s.say("%s", s.paint(dim, "# these need a running demo: KEEP=1 make demo"))
	}
	return nil
}

// hint is a command to try.
type hint struct{ what, line string }

func (s *story) commands() []hint {
	const more = " \\\n    "
	nkp, flags := s.config.asGiven, "--manifests $D/guestbook.yaml --ovsdb unix:$D/db.sock --bridge "+s.Bridge+more+
		"--hostname-override "+nodeName+" --gateway-mac "+testbed.GatewayMAC+" --cluster-cidr "+clusterCIDR
	return []hint{
		{"where the demo keeps everything, and the way into this node's network", fmt.Sprintf("D=%s N='nsenter --net=%s'", s.RunDir, s.Node.Netns())},
		{"what nkp would program, Service by Service", "$N " + nkp + " plan " + flags},
		{"does the switch hold what the manifest calls for? (exit status 0: yes; + missing, - too much)", "$N " + nkp + " diff " + flags},
		{"the same, asking the agent; and how it is", nkp + " diff --socket $D/nkp.sock; " + nkp + " status --socket $D/nkp.sock"},
		{"the switch's own word", fmt.Sprintf("ovs-ofctl -O OpenFlow15 dump-flows unix:$D/%s.mgmt", s.Bridge)},
		{"the groups that choose a pod", fmt.Sprintf("ovs-ofctl -O OpenFlow15 dump-groups unix:$D/%s.mgmt", s.Bridge)},
	}
}

// stay keeps everything running until ctx ends.
func (s *story) stay(ctx context.Context) {
	s.begin("Everything goes on running (KEEP=1)")
	vip, _ := s.address(frontend, "ClusterIP")
	nodePort, _ := s.address(frontend, "NodePort")
	for _, h := range []hint{
		{"Services, traces and the node on a web page; it prints the address", s.config.asGiven + " ui --socket " + s.socket()},
		{"a request from the client pod", s.request(s.client.Netns(), vip)},
		{"a request from outside the cluster", s.request(s.External.Netns(), nodePort)},
		{"a shell in the client pod", fmt.Sprintf("nsenter --net=%s bash", s.client.Netns())},
		{"change the Services: nkp follows this file", "${EDITOR:-vi} " + s.working},
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
