//go:build linux

package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// KubeVersion is that of the API server and of kube-proxy, which their modules pin.
const KubeVersion = "v1.36.3"

// Programs are the paths of what is run. Those that are empty are built.
type Programs struct {
	NKP, KubeServer, KubeProxy string
}

// Build builds what has no path yet into dir. root is the repository's. The first time takes minutes.
func (p *Programs) Build(ctx context.Context, root, dir string) error {
	version := "-X k8s.io/component-base/version.gitVersion=" + KubeVersion
	for _, b := range []struct {
		path        *string
		name        string
		module, pkg string
		ldflags     string
	}{
		{&p.NKP, "nkp", ".", ".", "-s -w"},
		{&p.KubeServer, "kubeserver", "test/e2e", "./kubeserver", version},
		{&p.KubeProxy, "kube-proxy", "test/semantics/kubeproxy", "k8s.io/kubernetes/cmd/kube-proxy", version},
	} {
		if *b.path == "" {
			*b.path = filepath.Join(dir, b.name)
			cmd := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(root, b.module), "-ldflags", b.ldflags, "-o", *b.path, b.pkg)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("build %s: %w: %s", b.name, err, out)
			}
		}
		abs, err := filepath.Abs(*b.path)
		if err != nil {
			return err
		}
		if _, err := os.Stat(abs); err != nil {
			return err
		}
		*b.path = abs
	}
	return nil
}
