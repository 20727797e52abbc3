// Command kubeserver is the part of a Kubernetes control plane that a service proxy sees: kube-apiserver with etcd
// embedded, and the controllers of EndpointSlices and of DaemonSets. Its ports are fixed, and etcd does not authenticate clients: run it in a network
// namespace of its own.
//
//	kubeserver DIR [FLAG OF KUBE-APISERVER...]
//
// Everything it keeps is in DIR: etcd's data, keys and certificates. Started again with the same DIR it
// goes on with the same objects, but without their history. When it serves, DIR/kubeconfig is there and works. It runs until it is killed.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kubeserver DIR [FLAG OF KUBE-APISERVER...]")
		os.Exit(2)
	}
	dir, err := filepath.Abs(os.Args[1])
	if err == nil {
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubeserver:", err)
		os.Exit(1)
	}
	for name, run := range map[string]func(context.Context, string) error{
		"EndpointSlice controller": runSliceController, "DaemonSet controller": runDaemonSets,
	} {
		go func() { // ends with the process
			if err := run(context.Background(), dir); err != nil {
				fmt.Fprintf(os.Stderr, "kubeserver: %s: %v\n", name, err)
				os.Exit(1)
			}
		}()
	}
	command := app.NewAPIServerCommand()
	command.SetArgs(append(apiServerFlags(dir), os.Args[2:]...)) // the last of two flags counts
	os.Exit(cli.Run(command))
}

// prepare writes keys and tokens, and starts etcd, which ends with the process.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := writeKeys(dir); err != nil {
		return err
	}
	return startEtcd(filepath.Join(dir, "etcd"))
}
