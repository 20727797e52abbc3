package main

import (
	"context"
	"path/filepath"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/kubernetes/pkg/controller/daemon"
)

// runDaemonSets waits for the API server and runs the DaemonSet controller until the context ends. It makes pods; what runs them is
// the tests' own.
func runDaemonSets(ctx context.Context, dir string) error {
	client, err := awaitAPIServer(ctx, filepath.Join(dir, "certs", "apiserver.crt"))
	if err != nil {
		return err
	}
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := daemon.NewDaemonSetsController(ctx, f.Apps().V1().DaemonSets(), f.Apps().V1().ControllerRevisions(), f.Core().V1().Pods(),
		f.Core().V1().Nodes(), client, flowcontrol.NewBackOff(time.Second, time.Minute))
	if err != nil {
		return err
	}
	f.Start(ctx.Done())
	c.Run(ctx, 2)
	return nil
}
