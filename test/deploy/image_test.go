//go:build linux

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// An image is one of the release's, for this machine, with its files in a folder.
type image struct {
	root       string
	entrypoint []string
}

// unpack extracts an image from its archive, as a container runtime would.
func unpack(t *testing.T, name string) image {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, "tar", "-C", dir, "-xf", distFile(t, name+"-image.tar"))
	l, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	indexes, err := partial.FindIndexes(l, func(v1.Descriptor) bool { return true })
	must(t, err)
	if len(indexes) != 1 {
		t.Fatalf("%s: %d image indexes", name, len(indexes))
	}
	images, err := partial.FindImages(indexes[0], func(d v1.Descriptor) bool { return d.Platform != nil && d.Platform.Architecture == "amd64" })
	must(t, err)
	if len(images) != 1 {
		t.Fatalf("%s: %d images for amd64", name, len(images))
	}
	config, err := images[0].ConfigFile()
	must(t, err)
	if !slices.Equal(config.Config.Cmd, []string{"run"}) {
		t.Errorf("%s runs nkp %q by itself", name, config.Config.Cmd)
	}
	root := t.TempDir()
	tar := exec.Command("tar", "-C", root, "-x")
	stream := mutate.Extract(images[0])
	defer stream.Close()
	tar.Stdin = stream
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("%s: tar: %v: %s", name, err, out)
	}
	return image{root, config.Config.Entrypoint}
}

// Each image needs nothing but what is in it and the volumes of its overlay: nkp serves with the image as its root directory,
// read-only, and with the overlay's capabilities.
func TestImagesServe(t *testing.T) {
	testbed.Require(t)
	requireProgram(t, "unshare")
	for _, k := range []struct {
		image        string
		options      testbed.Options
		flags        []string
		capabilities []string
	}{
		{"nkp", testbed.Options{}, []string{"--mode=ovs", "--host-traffic=off"}, nil},
		{"nkp-iptables", testbed.Options{Plane: testbed.Linux}, []string{"--mode=iptables"}, []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}},
	} {
		t.Run(k.image, func(t *testing.T) {
			i := unpack(t, k.image)
			if entries, err := os.ReadDir(i.root); k.image == "nkp" && len(entries) != 2 {
				t.Errorf("the image holds %v (%v), want the binary and the licenses alone", entries, err)
			}
			bed := testbed.Start(t, k.options)
			pods, err := bed.AddPods(testbed.PodSpec{}, testbed.PodSpec{})
			must(t, err)
			client, web := pods[0], pods[1]
			_, err = web.ServeTCP(8080)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(i.root, "web.yaml"), fmt.Appendf(nil, webManifest, testbed.NodeIP4, web.IP4), 0o644))

			if out, err := i.run(t, bed, k.capabilities, "version"); err != nil || !strings.HasPrefix(out, "nkp ") {
				t.Fatalf("nkp version: %v: %s", err, out)
			}
			cmd, log := i.start(t, bed, k.capabilities, append([]string{"run", "--manifests=/web.yaml", "--hostname-override=node-1", "--cluster-cidr=10.0.0.0/16"}, k.flags...)...)
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(log)
				}
			})
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }() // ends with the process
			wait.NoError(t, "nkp serves", func() error {
				_, err := client.Ask(t.Context(), "tcp", webVIP)
				return err
			})
			cmd.Process.Signal(syscall.SIGTERM)
			if err := <-done; err != nil {
				t.Errorf("nkp ends with %v", err)
			}
			for line := range strings.Lines(log.String()) {
				// /proc/sys is read-only in a container: the component sysctls sets what nkp cannot.
				if (strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN")) && !strings.Contains(line, "read-only file system") {
					t.Error(strings.TrimSpace(line))
				}
			}
		})
	}
}

// The init container of the component sysctls finds the shell and the programs that its script calls.
func TestImageHasShell(t *testing.T) {
	i := unpack(t, "nkp-iptables")
	text, err := os.ReadFile("../../deploy/kubernetes/components/sysctls/kustomization.yaml")
	must(t, err)
	for _, program := range []string{"cat", "nproc"} {
		if !strings.Contains(string(text), "$("+program) {
			t.Errorf("the script no longer calls %s: is the image's list right?", program)
		}
		if out, err := exec.Command("chroot", i.root, "/bin/sh", "-c", program).CombinedOutput(); err != nil {
			t.Errorf("%s in the image: %v: %s", program, err, out)
		}
	}
}

// start starts nkp in an image on the bed's node.
func (i image) start(t *testing.T, bed *testbed.Bed, capabilities []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	for _, dir := range []string{"run/nkp", "var/run/openvswitch", "proc", "dev", "mnt"} {
		must(t, os.MkdirAll(filepath.Join(i.root, dir), 0o755))
	}
	for _, file := range []string{"run/xtables.lock", "dev/null"} {
		must(t, os.WriteFile(filepath.Join(i.root, file), nil, 0o644))
	}
	// As a container runtime does: the volumes are mounted, /proc is, the root is read-only, capabilities are gone.
	const script = `set -e
		mount --bind "$1" "$1"; mount --bind "$2" "$1/var/run/openvswitch"; mount -t tmpfs tmpfs "$1/run/nkp"; mount -t proc -o ro proc "$1/proc"
		mount --bind /dev/null "$1/dev/null"; mount -t tmpfs tmpfs "$1/mnt"; touch "$1/mnt/lock"; mount --bind "$1/mnt/lock" "$1/run/xtables.lock"
		mount -o remount,bind,ro "$1"
		confine=$3 root=$1; shift 3
		exec "$confine" -root "$root" "$@"`
	argv := []string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", i.root, bed.RunDir, confineProgram(t)}
	for _, c := range capabilities {
		argv = append(argv, "-capability", c)
	}
	cmd := exec.Command("unshare", append(append(argv, i.entrypoint...), args...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	must(t, bed.Node.Start(cmd))
	return cmd, &log
}

// run runs nkp in an image to its end.
func (i image) run(t *testing.T, bed *testbed.Bed, capabilities []string, args ...string) (string, error) {
	t.Helper()
	cmd, log := i.start(t, bed, capabilities, args...)
	err := cmd.Wait()
	return log.String(), err
}
