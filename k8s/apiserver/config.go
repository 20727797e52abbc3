package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Defaults of the client, the same as kube-proxy's.
const (
	DefaultQPS         = 5
	DefaultBurst       = 10
	DefaultContentType = runtime.ContentTypeProtobuf
)

// InCluster reports whether this process runs in a pod with a service account.
func InCluster() bool {
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
}

// restConfig reads the configuration of the client; url is the API server's address for messages.
func restConfig(opts Options) (cfg *rest.Config, url string, err error) {
	switch {
	case opts.Kubeconfig != "" || opts.Master != "":
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: opts.Kubeconfig}
		override := &clientcmd.ConfigOverrides{
			ClusterInfo: api.Cluster{Server: opts.Master, CertificateAuthority: opts.CAFile},
			AuthInfo: api.AuthInfo{
				TokenFile: opts.TokenFile, ClientCertificate: opts.CertFile, ClientKey: opts.KeyFile,
			},
		}
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, override).ClientConfig()
		if err != nil && opts.Kubeconfig != "" {
			err = fmt.Errorf("kubeconfig %s: %w", opts.Kubeconfig, err)
		}
	default:
		cfg, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			err = errors.New("not in a pod with a service account: name a kubeconfig file")
		}
	}

	if err != nil {
		return nil, "", err
	}
	if cfg.ExecProvider != nil {
		return nil, "", fmt.Errorf("kubeconfig %s: user: exec: credentials come from a program (%s), "+
			"and nkp runs none: use tokenFile, or client-certificate and client-key",
			opts.Kubeconfig, cfg.ExecProvider.Command)
	}

	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, "", fmt.Errorf("address of the API server: %w", err)
	}

	cfg.QPS, cfg.Burst = cmp.Or(opts.QPS, DefaultQPS), cmp.Or(opts.Burst, DefaultBurst)
	cfg.UserAgent = opts.UserAgent
	cfg.ContentType = cmp.Or(opts.ContentType, DefaultContentType)
	cfg.AcceptContentTypes = cfg.ContentType + "," + runtime.ContentTypeJSON
	cfg.WarningHandler = rest.NoWarnings{}
	cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	setHTTP2Timeouts()
	return cfg, base.Scheme + "://" + base.Host, nil
}

func newClient(cfg *rest.Config) (*http.Client, kubernetes.Interface, error) {
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(cfg, hc)
	return hc, client, err
}
