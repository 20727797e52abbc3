//go:build linux

package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// Programs are the paths of what is run. Those that are empty are built.
type Programs struct {
	NKP, KubeServer, KubeProxy string
}

// Build builds what has no path yet into dir. root is the repository's. The first time takes minutes.
func (p *Programs) Build(ctx context.Context, root, dir string) error {
	version := testbed.ReportsKube(testbed.KubeVersion)
	if err := p.BuildNKP(ctx, root, dir); err != nil {
		return err
	}
	if err := build(ctx, &p.KubeServer, dir, "kubeserver", filepath.Join(root, "test/k8s"), "./e2e/kubeserver", version); err != nil {
		return err
	}
	return build(ctx, &p.KubeProxy, dir, "kube-proxy", filepath.Join(root, "test/k8s"), "k8s.io/kubernetes/cmd/kube-proxy", version)
}

// BuildNKP builds nkp alone, if it has no path yet.
func (p *Programs) BuildNKP(ctx context.Context, root, dir string) error {
	return build(ctx, &p.NKP, dir, "nkp", root, ".", "-s -w")
}

// build returns path the absolute path of a program, which it builds into dir if there is none.
func build(ctx context.Context, path *string, dir, name, module, pkg, ldflags string) error {
	if *path == "" {
		*path = filepath.Join(dir, name)
		cmd := exec.CommandContext(ctx, "go", "build", "-C", module, "-ldflags", ldflags, "-o", *path, pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	abs, err := filepath.Abs(*path)
	if err != nil {
		return err
	}
	*path = abs
	_, err = os.Stat(abs)
	return err
}
