package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// part is one of what build makes.
type part struct {
	name string
	make func(*settings, context.Context) error
}

var parts = []part{
	{"packages", (*settings).buildPackages}, {"rootfs", (*settings).buildRootfs}, {"kubernetes", (*settings).buildKubernetes},
	{"runtime", (*settings).buildRuntime}, {"dns", (*settings).buildDNS}, {"nkp", (*settings).buildNkp}, {"images", (*settings).buildImages},
	{"tests", (*settings).buildTests},
}

// build makes the named parts, or all. What Go has built before it does not build again; the file system of the images is kept.
func (s *settings) build(ctx context.Context, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("no part %q; %w", name, errUsage)
		}
	}
	for _, dir := range []string{s.bin("cni"), s.kube("bin"), s.kube("images"), filepath.Join(s.work, "results")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		begun := time.Now()
		if err := p.make(s, ctx); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		fmt.Printf("%s: %v\n", p.name, time.Since(begun).Round(time.Second))
	}
	return nil
}

// packages are what the machines of a cluster use of Debian.
var packages = []string{"openvswitch-switch", "runc", "conntrack", "ethtool", "mmdebstrap", "busybox-static", "jq", "iptables", "iproute2", "openssl", "gcc",
	"libc6-dev", "util-linux", "procps", "kmod"}

func (s *settings) buildPackages(ctx context.Context) error {
	return s.command(ctx, "", append([]string{"apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"}, packages...)...)
}

// inRootfs are the programs that upstream's tests run in their images.
const inRootfs = "busybox-static,bash,curl,netcat-openbsd,iproute2,bind9-dnsutils,conntrack,iptables,kmod,iperf,ca-certificates,ethtool,iputils-ping,wget"

func (s *settings) rootfs() string { return filepath.Join(s.work, "debian.tar") }

func (s *settings) buildRootfs(ctx context.Context) error {
	if _, err := os.Stat(s.rootfs()); err == nil {
		return nil
	}
	return s.command(ctx, "", "mmdebstrap", "--quiet", "--variant=essential", "--include="+inRootfs, "bookworm", s.rootfs())
}

// versionFlags are linker flags that set the version of Kubernetes' programs.
func (s *settings) versionFlags(ctx context.Context) (string, error) {
	version, err := s.moduleField(ctx, "k8s", "k8s.io/kubernetes", "Version")
	if err != nil {
		return "", err
	}
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(numbers) < 2 {
		return "", fmt.Errorf("version %q of k8s.io/kubernetes", version)
	}
	const set = " -X k8s.io/component-base/version."
	return "-s -w" + set + "gitVersion=" + version + set + "gitMajor=" + numbers[0] + set + "gitMinor=" + numbers[1], nil
}

// moduleField returns a field of a module that the module in a folder requires, as go list prints it.
func (s *settings) moduleField(ctx context.Context, folder, module, field string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{."+field+"}}", module)
	cmd.Dir, cmd.Env = filepath.Join(s.module(), folder), s.environ(folder)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// releases are the releases of Kubernetes that a cluster can have. All but the first have a module file of their own beside k8s/go.mod.
var releases = []string{"", "1.36"}

// environ returns the environment of a Go command in a module's folder. Of the folder k8s it selects the release's module file.
func (s *settings) environ(folder string) []string {
	env := append(os.Environ(), "CGO_ENABLED=0", "DEBIAN_FRONTEND=noninteractive")
	if folder == "k8s" && s.release != "" {
		env = append(env, "GOFLAGS=-modfile=kubernetes-"+s.release+".mod")
	}
	return env
}

// kube returns the path of a file that depends on the release of Kubernetes.
func (s *settings) kube(path string) string {
	if s.release == "" {
		return filepath.Join(s.work, path)
	}
	return filepath.Join(s.work, "kubernetes-"+s.release, path)
}

func (s *settings) module() string { return filepath.Join(s.root, "test/conformance") }

func (s *settings) bin(name string) string { return filepath.Join(s.work, "bin", name) }

// compile runs go build or go test -c in a module's folder.
func (s *settings) compile(ctx context.Context, folder string, args ...string) error {
	return s.commandWith(ctx, s.environ(folder), filepath.Join(s.module(), folder), append([]string{"go"}, args...)...)
}

func (s *settings) buildKubernetes(ctx context.Context) error {
	flags, err := s.versionFlags(ctx)
	if err != nil {
		return err
	}
	if err := s.compile(ctx, "k8s", "build", "-trimpath", "-ldflags="+flags, "-o", s.kube("bin/hyperkube"), "./hyperkube"); err != nil {
		return err
	}
	// Programs that others start by name.
	for _, name := range []string{"kubectl", "kubelet"} {
		text := "#!/bin/sh\nexec \"$(dirname \"$0\")/hyperkube\" " + name + " \"$@\"\n"
		if err := os.WriteFile(s.kube("bin/"+name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return s.compile(ctx, "k8s", "build", "-trimpath", "-ldflags=-s -w", "-o", s.kube("bin/agnhost"), "k8s.io/kubernetes/test/images/agnhost")
}

func (s *settings) buildRuntime(ctx context.Context) error {
	const containerd, plugins = "github.com/containerd/containerd/v2/cmd/", "github.com/containernetworking/plugins/plugins/"
	if err := s.compile(ctx, "runtime", "build", "-trimpath", "-ldflags=-s -w -X github.com/containerd/containerd/v2/version.Version="+
		s.version(ctx, "runtime", "github.com/containerd/containerd/v2"), "-tags=no_btrfs no_devmapper no_zfs", "-o", s.bin(""),
		containerd+"containerd", containerd+"containerd-shim-runc-v2", containerd+"ctr"); err != nil {
		return err
	}
	if err := s.compile(ctx, "runtime", "build", "-trimpath", "-ldflags=-s -w", "-o", s.bin("cni")+"/", plugins+"ipam/host-local", plugins+"main/bridge",
		plugins+"main/loopback", plugins+"meta/portmap"); err != nil {
		return err
	}
	return s.compile(ctx, "../cni", "build", "-trimpath", "-ldflags=-s -w", "-o", s.bin("cni/ovs"), "github.com/k8snetworkplumbingwg/ovs-cni/cmd/plugin")
}

// version returns the version of a module, "unknown" if go list fails.
func (s *settings) version(ctx context.Context, folder, module string) string {
	if v, err := s.moduleField(ctx, folder, module, "Version"); err == nil {
		return v
	}
	return "unknown"
}

func (s *settings) buildDNS(ctx context.Context) error {
	return s.compile(ctx, "dns", "build", "-trimpath", "-ldflags=-s -w", "-o", s.bin("coredns"), ".")
}

func (s *settings) buildNkp(ctx context.Context) error {
	version, err := exec.CommandContext(ctx, "git", "-C", s.root, "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		version = []byte("unknown")
	}
	return s.command(ctx, s.root, "go", "build", "-trimpath", "-ldflags=-s -w -X github.com/nkp-proxy/nkp/internal/agent.Version="+
		strings.TrimSpace(string(version)), "-o", s.bin("nkp"), ".")
}

func (s *settings) buildTests(ctx context.Context) error {
	flags, err := s.versionFlags(ctx)
	if err != nil {
		return err
	}
	if err := s.compile(ctx, "k8s", "test", "-c", "-trimpath", "-ldflags="+flags, "-o", s.kube("bin/e2e.test"), "k8s.io/kubernetes/test/e2e"); err != nil {
		return err
	}
	return s.compile(ctx, "k8s", "build", "-trimpath", "-ldflags=-s -w", "-o", s.kube("bin/ginkgo"), "github.com/onsi/ginkgo/v2/ginkgo")
}

// command runs a command in a folder, with its output on this program's.
func (s *settings) command(ctx context.Context, dir string, argv ...string) error {
	return s.commandWith(ctx, s.environ(""), dir, argv...)
}

func (s *settings) commandWith(ctx context.Context, env []string, dir string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv[:min(2, len(argv))], " "), err)
	}
	return nil
}
