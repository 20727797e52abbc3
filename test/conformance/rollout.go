package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// firstRelease is the first commit whose overlays declare the version v0.1.0. A rollout begins with it until there is a tag of that name.
const firstRelease = "58556ee90f43248ceeb3babd830f482b697a4aba"

//go:embed manifests/rollout.yaml
var rolloutManifest string

// version is an nkp to roll out: its folder deploy ("": this repository's), the tag of its images, and their archive ("": among the cluster's).
type version struct{ deploy, tag, archive string }

// rollout makes a cluster with an old version's manifests and images, rolls its DaemonSets out to this repository's and back while clients
// on each node open connections, and fails if a connection failed.
func (s *settings) rollout(ctx context.Context, plane string) error {
	if plane == "kube-proxy" || !slices.Contains(planes, plane) {
		return fmt.Errorf("rollout: %q is not a plane of nkp's; %w", plane, errUsage)
	}
	if s.family != "ipv4" {
		return fmt.Errorf("rollout: the clients' addresses are IPv4; %w", errUsage)
	}
	dir := filepath.Join(s.work, "rollout", plane+s.cluster)
	old := version{filepath.Join(dir, "deploy"), "old", filepath.Join(dir, "images.tar")}
	if err := s.buildOld(ctx, old); err != nil {
		return fmt.Errorf("build %s: %w", s.from, err)
	}
	s.installed = old
	c := &cluster{s, plane}
	if err := c.up(ctx); err != nil {
		return errors.Join(err, s.down(c))
	}
	return errors.Join(c.rollOut(ctx, []version{{tag: "conformance"}, old}), s.down(c))
}

// buildOld builds the programs and images of the commit s.from, and the clients.
func (s *settings) buildOld(ctx context.Context, v version) error {
	dir := filepath.Dir(v.deploy)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	tree, err := exec.CommandContext(ctx, "git", "-C", s.root, "archive", s.from).Output()
	if err != nil {
		return fmt.Errorf("git archive: %w", err)
	}
	untar := exec.CommandContext(ctx, "tar", "-x", "-C", dir)
	untar.Stdin, untar.Stderr = bytes.NewReader(tree), os.Stderr
	if err := untar.Run(); err != nil {
		return fmt.Errorf("tar: %w", err)
	}
	program := filepath.Join(dir, "nkp")
	if err := s.command(ctx, dir, "go", "build", "-trimpath", "-ldflags=-s -w -X github.com/nkp-proxy/nkp/internal/agent.Version="+s.from, "-o", program, "."); err != nil {
		return err
	}
	if err := s.compile(ctx, ".", "build", "-trimpath", "-o", s.bin("conformance"), "."); err != nil {
		return err
	}
	debian, err := os.ReadFile(s.rootfs())
	if err != nil {
		return err
	}
	images, err := nkpImages(debian, program, v.tag)
	if err != nil {
		return err
	}
	return writeArchive(v.archive, images)
}

// kubectl runs kubectl as the cluster's administrator and returns its output.
func (c *cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return c.on(ctx, "control", stdin, append([]string{"kubectl"}, args...)...)
}

// rollOut rolls versions out, one after the other, under load.
func (c *cluster) rollOut(ctx context.Context, versions []version) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	names, err := c.imageNames(ctx)
	if err != nil {
		return err
	}
	manifest := strings.NewReplacer("AGNHOST", names["agnhost"][0], "BUSYBOX", names["busybox"][0], "PROGRAMS", filepath.Join(c.work, "bin")).Replace(rolloutManifest)
	if _, err := c.kubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	for _, name := range []string{"server", "client", "node-client"} {
		if _, err := c.kubectl(ctx, "", "-n", "rollout", "rollout", "status", "daemonset/"+name, "--timeout=180s"); err != nil {
			return err
		}
	}
	if err := c.await(ctx, c.installed.tag); err != nil {
		return err
	}
	before, err := c.tally(ctx)
	if err != nil {
		return err
	}
	for _, v := range versions {
		begun, from := time.Now(), c.installed.tag
		c.installed = v
		if err := c.script(ctx, "proxy", c.plane).Run(); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
		if err := c.await(ctx, v.tag); err != nil {
			return err
		}
		took := time.Since(begun).Round(time.Second)
		after, err := c.tally(ctx)
		if err != nil {
			return err
		}
		t := after.since(before)
		fmt.Printf("%s, %s to %s in %v: %d connections, %d failed; %d requests on held connections, %d broken\n", c.plane, from, v.tag, took, t.Connections,
			t.Failed, t.Held, t.Broken)
		if t.Failed > 0 || t.Broken > 0 || t.Connections == 0 || t.Held == 0 {
			return fmt.Errorf("%s, %s to %s: %+v", c.plane, from, v.tag, t)
		}
		before = after
	}
	return nil
}

// await waits until all of nkp's pods have the images of a tag and are ready.
func (c *cluster) await(ctx context.Context, tag string) error {
	const selector = "app.kubernetes.io/name=nkp"
	if _, err := c.kubectl(ctx, "", "-n", "kube-system", "rollout", "status", "daemonset", "-l", selector, "--timeout=300s"); err != nil {
		return err
	}
	images, err := c.kubectl(ctx, "", "-n", "kube-system", "get", "pods", "-l", selector, "-o", `jsonpath={range .items[*]}{.spec.containers[0].image}{"\n"}{end}`)
	if err != nil {
		return err
	}
	lines := strings.Fields(images)
	if len(lines) != c.nodes || slices.ContainsFunc(lines, func(i string) bool { return !strings.HasSuffix(i, ":"+tag) }) {
		return fmt.Errorf("nkp's pods have the images %q, want %d with the tag %s", lines, c.nodes, tag)
	}
	return nil
}

// tally returns the sum of all clients' counts, after long enough for a connection that fails to count.
func (c *cluster) tally(ctx context.Context) (tally, error) {
	if !pause(ctx, loadPatience+2*time.Second) {
		return tally{}, ctx.Err()
	}
	text, err := c.kubectl(ctx, "", "-n", "rollout", "logs", "-l", "role=client", "--tail=1", "--max-log-requests=100")
	if err != nil {
		return tally{}, err
	}
	return readTallies(text, 2*c.nodes)
}
