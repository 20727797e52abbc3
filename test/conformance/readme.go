package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// installPage says how to install nkp.
const installPage = "docs/operate/install.md"

// step is a command line of its section "Install it".
type step struct {
	command  string
	eachNode bool // in the folder of the images; else in a clone of the repository, by an administrator
}

// installSteps returns the commands that install nkp, in their order: those of the numbered list that are not an alternative for a registry.
func installSteps(page string) (steps []step, err error) {
	_, section, ok := strings.Cut(page, "\n## Install it\n")
	if !ok {
		return nil, errors.New(installPage + ` has no section "Install it"`)
	}
	section, _, _ = strings.Cut(section, "\n**Helm**") // instead of what comes before
	code := false
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			code = !code
			continue
		}
		if !code || line == "" {
			continue
		}
		command, comment, _ := strings.Cut(line, "  #")
		if strings.Contains(comment, "or once") {
			continue
		}
		steps = append(steps, step{strings.TrimSpace(command), strings.Contains(comment, "on each node")})
	}
	if len(steps) < 4 || !slices.ContainsFunc(steps, func(s step) bool { return s.eachNode }) {
		return nil, fmt.Errorf("the commands of %s: %+v", installPage, steps)
	}
	return steps, nil
}

// exampleAPI is the API server's address on that page, which its reader replaces.
const exampleAPI = "192.0.2.10"

var (
	apiServer = regexp.MustCompile(`control plane is running at https://([^:]+):`)
	colours   = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// apiServerIn returns the address that kubectl cluster-info has printed.
func apiServerIn(info string) (string, error) {
	found := apiServer.FindStringSubmatch(colours.ReplaceAllString(info, ""))
	if found == nil {
		return "", fmt.Errorf("kubectl cluster-info prints no address: %q", info)
	}
	return found[1], nil
}

// readme follows the section "Install it" in a cluster without a Service proxy, and then has CoreDNS reach the API server through
// its Service, and kubectl's plugin all nodes. The folder dist has the images that make images VERSION=v0.1.0 builds.
func (s *settings) readme(ctx context.Context, plane string) error {
	if plane == "kube-proxy" || !slices.Contains(planes, plane) {
		return fmt.Errorf("readme: %q is not a plane of nkp's; %w", plane, errUsage)
	}
	text, err := os.ReadFile(filepath.Join(s.root, installPage))
	if err != nil {
		return err
	}
	steps, err := installSteps(string(text))
	if err != nil {
		return err
	}
	for _, image := range []string{"nkp-image.tar", "nkp-iptables-image.tar"} {
		if _, err := os.Stat(filepath.Join(s.dist, image)); err != nil {
			return fmt.Errorf("-dist: %w; make images VERSION=v0.1.0 builds it", err)
		}
	}
	clone := filepath.Join(s.work, "readme", plane+s.cluster, "nkp")
	if err := os.RemoveAll(clone); err != nil {
		return err
	}
	if err := s.command(ctx, "", "git", "clone", "--quiet", s.root, clone); err != nil {
		return err
	}
	c := &cluster{s, plane}
	if err := c.empty(ctx); err != nil {
		return errors.Join(err, s.down(c))
	}
	return errors.Join(c.follow(ctx, steps, clone), s.down(c))
}

// empty makes a cluster without a Service proxy.
func (c *cluster) empty(ctx context.Context) error {
	if err := c.down(); err != nil {
		return err
	}
	up := c.script(ctx, "up", c.plane)
	up.Env = append(up.Env, "STAGE=empty")
	return up.Run()
}

func (c *cluster) follow(ctx context.Context, steps []step, clone string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	info, err := c.kubectl(ctx, "", "cluster-info")
	if err != nil {
		return err
	}
	api, err := apiServerIn(info)
	if err != nil {
		return err
	}
	dist, err := filepath.Abs(c.dist)
	if err != nil {
		return err
	}
	for _, step := range steps {
		command := strings.ReplaceAll(step.command, exampleAPI, api)
		machines, folder := []string{"control"}, clone
		if step.eachNode {
			machines, folder = nil, dist
			for n := range c.nodes {
				machines = append(machines, "node-"+strconv.Itoa(n+1))
			}
		}
		for _, machine := range machines {
			fmt.Printf("%s$ %s\n", machine, command)
			out, err := c.on(ctx, machine, "", "sh", "-ec", `cd "$0" && eval "$1"`, folder, command)
			fmt.Print(out)
			if err != nil {
				return err
			}
		}
	}
	if err := c.script(ctx, "dns", c.plane).Run(); err != nil {
		return fmt.Errorf("CoreDNS: %w", err)
	}
	if _, err := c.kubectl(ctx, "", "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=240s"); err != nil {
		return err
	}
	if err := c.plugin(ctx); err != nil {
		return err
	}
	fmt.Printf("%s: the commands of %s have installed nkp, CoreDNS reaches the API server through its Service, and kubectl nkp all nodes\n", c.plane, installPage)
	return nil
}
