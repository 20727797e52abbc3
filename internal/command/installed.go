package command

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// The configuration that a package's user puts into settings.dir needs no flag: the unit's arguments follow
// what is there. Flags win, and in a pod only flags count.

// installed returns the path of a file or directory in the configuration's directory; "": it is not there. A
// link that leads nowhere is there, and so is what nkp may not read: to read it is an error, not to skip it.
func (s *settings) installed(name string) string {
	if s.dir == "" || apiserver.InCluster() {
		return ""
	}
	path := filepath.Join(s.dir, name)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

// installedConfiguration takes config.yaml for --config and ncp.ini for --ncp-ini, unless the flags name a
// configuration or a source of Services.
func (s *settings) installedConfiguration() {
	if s.cfg.path != "" || s.ncpINI != "" || s.namesSource() {
		return
	}
	s.cfg.path, s.ncpINI = s.installed("config.yaml"), s.installed("ncp.ini")
}

// installedSource takes kubeconfig for --kubeconfig or, without that, manifests for --manifests, unless flags
// or files name a source of Services.
func (s *settings) installedSource() {
	if s.namesSource() {
		return
	}
	manifests := s.installed("manifests")
	if s.kubeconfig = s.installed("kubeconfig"); s.kubeconfig == "" {
		s.manifests = manifests
	} else if manifests != "" {
		s.cfg.warnings = append(s.cfg.warnings, manifests+" is not used, because "+s.kubeconfig+
			" is there, too: pass --manifests to serve the manifests")
	}
}
