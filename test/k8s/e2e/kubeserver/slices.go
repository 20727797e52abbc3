package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/pkg/controller/endpointslice"

	"github.com/nkp-proxy/nkp/test/wait"
)

// runSliceController waits for the API server, writes the kubeconfig and runs the EndpointSlice controller until
// the context ends.
func runSliceController(ctx context.Context, dir string) error {
	ca := filepath.Join(dir, "certs", "apiserver.crt") // self-signed: the chain ends in its own authority
	client, err := awaitAPIServer(ctx, ca)
	if err != nil {
		return err
	}
	if err := writeKubeconfig(filepath.Join(dir, "kubeconfig"), ca); err != nil {
		return err
	}
	f := informers.NewSharedInformerFactory(client, 0)
	c := endpointslice.NewController(ctx, f.Core().V1().Pods(), f.Core().V1().Services(), f.Core().V1().Nodes(),
		f.Discovery().V1().EndpointSlices(), 100, client, 0)
	f.Start(ctx.Done())
	c.Run(ctx, 5)
	return nil
}

// awaitAPIServer returns a client once the server is ready.
func awaitAPIServer(ctx context.Context, ca string) (kubernetes.Interface, error) {
	var client kubernetes.Interface
	err := wait.Until(ctx, func() error {
		c, err := kubernetes.NewForConfig(&rest.Config{
			Host: apiServerURL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: ca}, QPS: 500, Burst: 500,
		})
		if err != nil {
			return err // the certificate is not there yet
		}
		var status int
		err = c.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&status).Error()
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d", status)
		}
		client = c
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the API server does not get ready: %w", err)
	}
	return client, nil
}

// writeKubeconfig writes the file in one step: who sees it may use it.
func writeKubeconfig(path, ca string) error {
	cfg := api.NewConfig()
	cfg.Clusters["e2e"] = &api.Cluster{Server: apiServerURL, CertificateAuthority: ca}
	cfg.AuthInfos["admin"] = &api.AuthInfo{Token: token}
	cfg.Contexts["e2e"] = &api.Context{Cluster: "e2e", AuthInfo: "admin"}
	cfg.CurrentContext = "e2e"
	if err := clientcmd.WriteToFile(*cfg, path+".new"); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
