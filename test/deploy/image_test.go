//go:build linux

package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const imageDir = "../../deploy/image"

// dockerfile is a parsed one, with one stage.
type dockerfile struct {
	stage      instructions.Stage
	copies     map[string]string // destination by source
	entrypoint []string
	cmd        []string
	runs       []string
}

// parse reads a Dockerfile as BuildKit does; what BuildKit's linter says is an error.
func parse(t *testing.T, name string) dockerfile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(imageDir, name))
	must(t, err)
	ast, err := parser.Parse(bytes.NewReader(text))
	must(t, err)
	for _, w := range ast.Warnings {
		t.Errorf("%s: %s", name, w.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, text string, _ []parser.Range) { t.Errorf("%s: %s: %s", name, rule, text) }})
	stages, _, err := instructions.Parse(ast.AST, lint)
	must(t, err)
	if len(stages) != 1 {
		t.Fatalf("%s has %d stages", name, len(stages))
	}
	d := dockerfile{stage: stages[0], copies: map[string]string{}}
	for _, c := range stages[0].Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			for _, src := range c.SourcePaths {
				d.copies[src] = c.DestPath
			}
		case *instructions.EntrypointCommand:
			d.entrypoint = c.CmdLine
		case *instructions.CmdCommand:
			d.cmd = c.CmdLine
		case *instructions.RunCommand:
			d.runs = append(d.runs, strings.Join(c.CmdLine, " "))
		}
	}
	return d
}

// The Dockerfiles are in order, and copy files that a release has.
func TestDockerfiles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(imageDir, "Dockerfile*"))
	must(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		d := parse(t, name)
		if len(d.copies) != 1 || len(d.entrypoint) != 1 || !slices.Equal(d.cmd, []string{"run"}) {
			t.Errorf("%s: %+v", name, d)
		}
		for src, dst := range d.copies {
			distFile(t, strings.ReplaceAll(src, "${TARGETARCH}", "amd64"))
			if !strings.HasSuffix(dst, filepath.Base(d.entrypoint[0])) {
				t.Errorf("%s starts %s, and has %s", name, d.entrypoint[0], dst)
			}
		}
	}
	if len(files) != 3 {
		t.Errorf("%d Dockerfiles", len(files))
	}
}

// The image from scratch needs nothing but the binary in it: nkp serves with that as its root directory, without any
// capability, and with nothing else to see but the sockets of Open vSwitch and the manifests.
func TestScratchImage(t *testing.T) {
	testbed.Require(t)
	requireProgram(t, "unshare")
	d := parse(t, "Dockerfile")
	if d.stage.BaseName != "scratch" || len(d.runs) > 0 {
		t.Fatalf("the image is made from %s with %v", d.stage.BaseName, d.runs)
	}
	bed := testbed.Start(t, testbed.Options{})
	pods, err := bed.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
	must(t, err)
	client, web := pods[0], pods[1]
	_, err = web.ServeTCP(8080)
	must(t, err)

	root := t.TempDir()
	for src, dst := range d.copies {
		mustRun(t, "install", "-m", "755", distFile(t, strings.ReplaceAll(src, "${TARGETARCH}", "amd64")), filepath.Join(root, dst))
	}
	must(t, os.WriteFile(filepath.Join(root, "web.yaml"), fmt.Appendf(nil, webManifest, testbed.NodeIP4, web.IP4), 0o644))
	for _, dir := range []string{"run/nkp", "var/run/openvswitch", "proc"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	start := func(argv ...string) (*exec.Cmd, *bytes.Buffer) {
		t.Helper()
		// As a container runtime does: the volumes are mounted, /proc is, the root is read-only, capabilities are gone.
		const script = `set -e
			mount --bind "$1" "$1"; mount --bind "$2" "$1/var/run/openvswitch"; mount -t tmpfs tmpfs "$1/run/nkp"; mount -t proc -o ro proc "$1/proc"
			mount -o remount,bind,ro "$1"
			confine=$3 root=$1; shift 3
			exec "$confine" -root "$root" "$@"`
		cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", root, bed.RunDir, confineProgram(t)}, argv...)...)
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		must(t, bed.Node.Start(cmd))
		return cmd, &log
	}
	cmd, log := start(append(slices.Clone(d.entrypoint), "version")...)
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(log.String(), "nkp ") {
		t.Fatalf("nkp version: %v: %s", err, log)
	}
	cmd, log = start(append(slices.Clone(d.entrypoint), "run", "--mode=ovs", "--host-traffic=off", "--manifests=/web.yaml", "--hostname-override=node-1", "--cluster-cidr=10.0.0.0/16")...)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // ends with the process
	eventually(t, 20*time.Second, "nkp serves", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.Ask(ctx, "tcp", webVIP)
		return err
	})
	cmd.Process.Signal(syscall.SIGTERM)
	if err := <-done; err != nil {
		t.Errorf("nkp ends with %v", err)
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			t.Error(strings.TrimSpace(line))
		}
	}
}
