package command

import "github.com/nkp-proxy/nkp/internal/config"

// configz returns the configurations as they are in force, for /configz: kube-proxy's under the group where kube-proxy shows
// it, and nkp's own.
func (s *settings) configz() map[string]any {
	return map[string]any{config.KubeProxyGroup: s.cfg.kubeProxy, config.Group: s.cfg.nkp}
}
