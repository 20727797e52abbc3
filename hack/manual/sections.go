package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// entry is a file or a variable of the environment, and the commands that use it: all of them if there are none.
type entry struct {
	name, text string
	commands   []string
}

var files = []entry{
	{"/run/nkp/nkp.sock", "the agent's socket (--socket), which only root may use", nil},
	{"/run/nkp/mode, /run/nkp/sysctls", "the data planes of the last run, and the sysctls that it changed with their former values; they go with a boot", []string{"run", "cleanup"}},
	{"/etc/nkp/config.yaml, /etc/nkp/ncp.ini", "taken as --config and --ncp-ini, if no flag names a configuration or a source of Services", []string{"run", "plan"}},
	{"/etc/nkp/kubeconfig, /etc/nkp/manifests", "where Services come from, if neither flags nor the configuration say: the kubeconfig or, without it, the manifests", []string{"run", "plan"}},
	{"/etc/default/nkp", "NKP_ARGS, the arguments with which nkp.service starts nkp", []string{"run"}},
	{"/var/run/openvswitch/db.sock", "the database of Open vSwitch (--ovsdb)", []string{"run", "plan", "diff", "cleanup", "trace", "services", "status"}},
	{"/usr/share/doc/nkp/examples/config.yaml", "a configuration with every setting, each of which is the default", []string{"run"}},
}

var environment = []entry{
	{"KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT", "the API server's address in a pod, whose service account is used then; nothing in /etc/nkp is", []string{"run", "plan"}},
	{"KUBE_NETWORK", "the HNS network of the pods, on Windows, without --network-name", []string{"run", "plan", "diff", "cleanup"}},
	{"NOTIFY_SOCKET, WATCHDOG_USEC", "set by systemd: nkp says when Services are in force, and that it is alive", []string{"run"}},
	{"XTABLES_LOCKFILE", "the lock of iptables-legacy, as for iptables(8)", []string{"run", "diff", "cleanup"}},
	{"GOGC, GOMEMLIMIT", "limits of Go's memory; without them nkp sets GOGC by itself", []string{"run"}},
	{"NKP_DEBUG", "openflow logs the messages of the OpenFlow channel, openflow-hex their bytes, too", []string{"run"}},
}

// exitText begins a command's exit statuses in its help.
const exitText = "Exit status: "

// exitStatus returns what a command's exit statuses mean: the sentence of its help, or the usual ones.
func exitStatus(cmd *cobra.Command) string {
	long := strings.Join(strings.Fields(cmd.Long), " ")
	if _, text, ok := strings.Cut(long, exitText); ok {
		text, _, _ = strings.Cut(text, ". ")
		return strings.TrimSuffix(text, ".") + ". A wrong command line: 2."
	}
	return "0 done, 1 it failed, for the reason on standard error, 2 the command line is wrong."
}

// addSections adds to a command's page, in dir, what cobra's generator leaves out.
func addSections(cmd *cobra.Command, dir string) error {
	path := filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".8")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}

	text := section("EXIT STATUS", roff(exitStatus(cmd))+"\n") +
		list("ENVIRONMENT", environment, cmd) + list("FILES", files, cmd)
	before, after, found := strings.Cut(string(page), ".SH SEE ALSO")
	if !found {
		return fmt.Errorf("%s has no section SEE ALSO", path)
	}
	return os.WriteFile(path, []byte(before+text+".SH SEE ALSO"+after), 0o644)
}

func list(title string, all []entry, cmd *cobra.Command) string {
	name := cmd.Name()
	if !cmd.HasParent() {
		name = "run" // nkp without a command
	}
	text := ""
	for _, e := range all {
		if len(e.commands) == 0 || slices.Contains(e.commands, name) {
			text += ".TP\n\\fB" + roff(e.name) + "\\fP\n" + roff(e.text) + "\n"
		}
	}
	return section(title, text)
}

func section(title, text string) string {
	if text == "" {
		return ""
	}
	return ".SH " + title + "\n" + text + "\n"
}

// roff returns a text in which nothing is a request or an escape of roff.
func roff(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
}
