package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// How many EndpointSlices PodIPs reads at most, in pages of slicesPage.
const (
	slicesPage  = 200
	slicesPages = 20
)

// PodIPs asks the API server for the addresses of a pod, in the order of its status. It needs the right to
// get pods. nkp's role does not include that, so PodIPs then searches the EndpointSlices of the namespace for
// an endpoint that is the pod.
func (s *Source) PodIPs(ctx context.Context, namespace, name string) (ips []netip.Addr, err error) {
	pod, err := s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return s.endpointPod(ctx, namespace, name)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the API server has no pod %s/%s", namespace, name)
	case err != nil:
		return nil, fmt.Errorf("pod %s/%s: %w; pass the pod's address instead", namespace, name, err)
	}
	if phase := pod.Status.Phase; phase == v1.PodSucceeded || phase == v1.PodFailed {
		return nil, fmt.Errorf("pod %s/%s has ended (phase %s): its address may be another pod's",
			namespace, name, phase)
	}
	for _, p := range pod.Status.PodIPs {
		if ip, ok := k8s.ParseAddr(p.IP); ok {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no address yet (phase %s)", namespace, name, pod.Status.Phase)
	}
	return ips, nil
}

// endpointPod finds the addresses of a pod that is an endpoint of a Service, sorted.
func (s *Source) endpointPod(ctx context.Context, namespace, name string) (ips []netip.Addr, err error) {
	opts := metav1.ListOptions{Limit: slicesPage}
	for range slicesPages {
		list, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("pod %s/%s: nkp may not get pods, "+
				"and its EndpointSlices cannot be listed: %w; pass the pod's address instead",
				namespace, name, err)
		}
		for i := range list.Items {
			ips = k8s.AppendPodIPs(ips, &list.Items[i], namespace, name)
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			break
		}
	}

	if len(ips) == 0 {
		none := "no EndpointSlice names it"
		if opts.Continue != "" {
			none = fmt.Sprintf("none of the first %d EndpointSlices of %s names it",
				slicesPage*slicesPages, namespace)
		}
		return nil, fmt.Errorf("pod %s/%s is not known here: no port of the bridge has its name, %s, "+
			"and nkp may not get pods at the API server. "+
			"Pass the pod's address (kubectl -n %s get pod %s -o wide), "+
			"or --kubeconfig of a user who may get pods",
			namespace, name, none, namespace, name)
	}

	slices.SortFunc(ips, netip.Addr.Compare)
	return ips, nil
}
