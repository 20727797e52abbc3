package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// pluginCommands are commands of kubectl's plugin, run by a shell in a cluster with CoreDNS, and what their output must have. NODES stands
// for the names of all nodes.
var pluginCommands = []struct {
	command string
	want    []string
}{
	{"kubectl nkp status", []string{"NODES"}},
	{"kubectl nkp status -o json", []string{"NODES", `"servicePorts"`}},
	{"kubectl nkp status -o yaml", []string{"NODES", "servicePorts:"}},
	{"kubectl nkp services -A", []string{"default/kubernetes:https/TCP", "kube-system/kube-dns:dns/UDP"}},
	{"kubectl nkp diff", nil},
	{`kubectl nkp trace --live --to svc/default/kubernetes:https \
	--from pod/kube-system/$(kubectl -n kube-system get pods -l k8s-app=kube-dns -o 'jsonpath={.items[0].metadata.name}')`, []string{"asked on node node-", ":6443"}},
	{`out=$(mktemp); timeout 60 kubectl nkp ui >"$out" &
for i in $(seq 100); do ! grep -q http "$out" || break; sleep 0.2; done
page=$(head -n 1 "$out"); path=${page#http://*/}
for p in "" node-1/api/status; do kubectl --server "${page%"/$path"}" get --raw "/$path$p"; done; kill $!`, []string{"NODES", `"node":"node-1"`}},
}

// plugin runs nkp as kubectl's plugin, as the cluster's administrator.
func (c *cluster) plugin(ctx context.Context) error {
	if err := os.Symlink("nkp", c.bin("kubectl-nkp")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for _, x := range pluginCommands {
		fmt.Printf("control$ %s\n", x.command)
		out, err := c.on(ctx, "control", "", "sh", "-ec", x.command)
		fmt.Print(out)
		if err != nil {
			return err
		}
		for _, want := range x.want {
			if want != "NODES" {
				if !strings.Contains(out, want) {
					return fmt.Errorf("%s: no %q in %s", x.command, want, out)
				}
				continue
			}
			for n := range c.nodes {
				if name := "node-" + strconv.Itoa(n+1); !strings.Contains(out, name) {
					return fmt.Errorf("%s: no %s in %s", x.command, name, out)
				}
			}
		}
	}
	return nil
}
