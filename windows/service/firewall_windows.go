package service

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ruleName is the name of the firewall rule.
const ruleName = "nkp health checks"

// netshTime bounds a call of netsh.
const netshTime = 30 * time.Second

// firewallPorts returns the ports of the rule as netsh takes them.
func firewallPorts(p Program, nodePorts string) string {
	var all []string
	for _, port := range p.Ports {
		all = append(all, strconv.Itoa(int(port)))
	}
	if nodePorts != "" {
		all = append(all, nodePorts)
	}
	return strings.Join(all, ",")
}

// setRule makes the firewall accept TCP connections to ports of a program; ports "" removes the rule. Rules of the same name that exist
// are changed.
func setRule(program, ports string) error {
	name := "name=" + ruleName
	if ports == "" {
		// netsh fails if there is no such rule; only its message, in the system's language, differs from that of other errors.
		_ = netsh("delete", "rule", name)
		return nil
	}
	to := []string{"program=" + program, "protocol=TCP", "localport=" + ports, "action=allow"}
	if netsh(append([]string{"set", "rule", name, "dir=in", "new"}, to...)...) == nil {
		return nil
	}
	return netsh(append([]string{"add", "rule", name, "dir=in"}, to...)...)
}

// netsh runs netsh advfirewall firewall.
func netsh(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), netshTime)
	defer cancel()
	if _, err := Netsh(ctx, append([]string{"advfirewall", "firewall"}, args...)...); err != nil {
		return fmt.Errorf("%w (--firewall=false leaves the firewall alone)", err)
	}
	return nil
}
