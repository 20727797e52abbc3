// Command hyperkube is etcd, the programs of a Kubernetes control plane and node, and kubectl, unchanged, in one file: linked once instead
// of seven times.
//
//	hyperkube PROGRAM [FLAG...]
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs run with os.Args as upstream's own programs have it, and return the exit status.
var programs = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
	"kubectl":                 func() int { return runKubectl(kubectl.NewDefaultKubectlCommand()) },
}

func runKubectl(c *cobra.Command) int {
	if err := cli.RunNoErrOutput(c); err != nil {
		kubectlutil.CheckErr(err) // prints it and exits
	}
	return 0
}

func main() {
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintf(os.Stderr, "usage: hyperkube PROGRAM [FLAG...]; PROGRAM is one of %q\n", slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(programs[os.Args[0]]())
}
