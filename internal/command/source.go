package command

import (
	"context"
	"fmt"
	"os"

	"github.com/nkp-proxy/nkp/internal/agent"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/k8s/manifest"
)

// namesSource reports whether the flags say where Services come from.
func (s *settings) namesSource() bool {
	return s.manifests != "" || s.kubeconfig != "" || s.master != ""
}

// checkSource refuses flags that contradict each other.
func (s *settings) checkSource() error {
	if s.manifests == "" {
		return nil
	}
	if s.kubeconfig != "" {
		return usageError(
			"--manifests and --kubeconfig exclude each other: Services come either from files or from the " +
				"API server")
	}
	if s.master != "" {
		return usageError(
			"--manifests and --master exclude each other: Services come either from files or from the API " +
				"server")
	}
	return nil
}

// needSource is checkSource, and also requires a source: one named by flags, or the service account of a pod.
func (s *settings) needSource() error {
	if !s.namesSource() && !apiserver.InCluster() {
		return usageError(
			"there is no source of Services: name the API server with --kubeconfig or --ncp-ini, or files " +
				"with --manifests")
	}
	return s.checkSource()
}

// source returns the source of Services, and its name for messages.
func (s *settings) source() (source k8s.Source, kind string, err error) {
	if err := s.needSource(); err != nil {
		return nil, "", err
	}
	if s.manifests != "" {
		if _, err := os.Stat(s.manifests); err != nil {
			return nil, "", fmt.Errorf("--manifests: %w", err)
		}
		return manifest.NewSource(s.manifests), "manifests " + s.manifests, nil
	}
	api, err := s.apiSource()
	if err != nil {
		return nil, "", err
	}
	return api, "API server " + api.URL(), nil
}

func (s *settings) apiSource() (*apiserver.Source, error) {
	api, err := apiserver.NewSource(s.apiOptions())
	if from := s.cfg.origin["master"]; err != nil && from != "" { // of its files and its address
		err = fmt.Errorf("%s: [k8s]: %w", from, err)
	}
	return api, err
}

func (s *settings) apiOptions() apiserver.Options {
	o := s.api
	o.Kubeconfig, o.Master = s.kubeconfig, s.master
	o.NodeName, o.ServiceProxyName = s.NodeName, s.ServiceProxyName
	o.UserAgent = "nkp/" + agent.Version
	return o
}

// readSource reads all objects once.
func (s *settings) readSource(ctx context.Context) ([]k8s.Change, k8s.Problems, error) {
	if err := s.needSource(); err != nil {
		return nil, k8s.Problems{}, err
	}
	if s.manifests != "" {
		m := manifest.Load(s.manifests)
		return m.Objects, m.Problems, nil
	}
	api, err := s.apiSource()
	if err != nil {
		return nil, k8s.Problems{}, err
	}
	return api.List(ctx)
}
