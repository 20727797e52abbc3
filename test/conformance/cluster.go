package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// cluster is a cluster on this machine, whose only Service proxy is a plane's.
type cluster struct {
	*settings
	plane string
}

// script returns the command of a script in the folder cluster.
func (s *settings) script(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.root, "test/conformance/cluster", name), args...)
	cmd.Env = append(os.Environ(), "CONFORMANCE="+s.work, "NODES="+strconv.Itoa(s.nodes), "IP_FAMILY="+s.family, "CNI="+s.cni, "OVERLAY="+s.overlay,
		"NKP_CONFIG="+s.config, "DEPLOY="+s.installed.deploy, "TAG="+s.installed.tag, "ARCHIVE="+s.installed.archive, "GATEWAY="+s.gateway,
		"KUBERNETES="+s.release, "CLUSTER="+s.cluster)
	if s.kill > 0 {
		cmd.Env = append(cmd.Env, "RESTART_AFTER=1s")
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

// on runs a command in a machine, where kubectl is the cluster's administrator, and returns its output.
func (c *cluster) on(ctx context.Context, machine, stdin string, argv ...string) (string, error) {
	cmd := c.script(ctx, "on", append([]string{c.plane, machine}, argv...)...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = strings.NewReader(stdin), &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s", machine, strings.Join(argv, " "), err, out.String())
	}
	return out.String(), nil
}

func (c *cluster) up(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	if err := c.down(); err != nil { // a run that was interrupted may have left one
		return err
	}
	return c.script(ctx, "up", c.plane).Run()
}

func (c *cluster) down() error {
	return c.script(context.Background(), "down", c.plane).Run()
}

// reports is the folder of the last run's reports.
func (c *cluster) reports() string {
	return filepath.Join(c.work, "results", fileName(c.plane, c.variant())+c.settings.cluster)
}

// test runs e2e.test in the cluster. An error may mean that tests have failed.
func (c *cluster) test(ctx context.Context) error {
	selected := network
	switch {
	case c.smoke:
		selected = focusOf(smoke)
	case c.focus != "":
		selected += ".*(" + c.focus + ")"
	}
	if err := errors.Join(os.RemoveAll(c.reports()), os.MkdirAll(c.reports(), 0o755)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit+time.Minute)
	defer cancel()
	log, err := os.Create(c.reports() + ".log")
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Printf("%s: testing; %s\n", c.plane, log.Name())
	cmd := c.script(ctx, "test", c.plane, c.reports(), "--procs="+strconv.Itoa(c.procs), "--timeout="+c.limit.String(), "--focus="+selected, "--skip="+skip(c.family))
	cmd.Stdout, cmd.Stderr = log, log
	return cmd.Run()
}

// versions returns the versions of what takes part.
func (c *cluster) versions(ctx context.Context) map[string]string {
	versions := map[string]string{}
	for _, v := range []struct{ name, command string }{
		{"Kubernetes", "hyperkube kubelet --version"}, {"containerd", "containerd --version"}, {"CoreDNS", "coredns -version"},
		{"Open vSwitch", "ovs-vswitchd --version"}, {"nkp", c.nkpInImages() + " version"}, {"Linux", "uname -r"},
	} {
		if c.plane == "kube-proxy" && v.name == "nkp" || c.plane != "ovs" && v.name == "Open vSwitch" {
			continue
		}
		cmd := exec.CommandContext(ctx, "sh", "-c", v.command)
		cmd.Env = append(os.Environ(), "PATH="+c.kube("bin")+":"+filepath.Join(c.work, "bin")+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			versions[v.name] = "?"
			continue
		}
		versions[v.name] = versionIn(string(out))
	}
	return versions
}

// number is a version as most programs print it.
var number = regexp.MustCompile(`(?:^|[\s-])v?(\d+\.\d[\d.]*(?:-\d+-g[0-9a-f]+)?)`)

// versionIn returns the version number in a text, or else its first word that has a digit, such as a commit.
func versionIn(text string) string {
	if m := number.FindStringSubmatch(text); m != nil {
		return strings.TrimSuffix(m[1], ".")
	}
	for word := range strings.FieldsSeq(text) {
		if strings.ContainsAny(word, "0123456789") {
			return word
		}
	}
	return "?"
}

// disturb kills nkp on a random node every c.kill until the returned function is called.
func (c *cluster) disturb(ctx context.Context) (stop func()) {
	if c.kill <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan int, 1)
	go func() {
		kills := 0
		tick := time.NewTicker(c.kill)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- kills
				return
			case <-tick.C:
				if c.script(ctx, "kill-nkp", c.plane, strconv.Itoa(1+rand.IntN(c.nodes))).Run() == nil { // it may be starting
					kills++
				}
			}
		}
	}()
	return func() {
		cancel()
		fmt.Printf("%s: nkp was killed %d times\n", c.plane, <-done)
	}
}
