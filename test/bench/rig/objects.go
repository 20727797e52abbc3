//go:build linux

package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
)

// Endpoints is how many each Service has, but in the rows of -huge.
const Endpoints = 10

const (
	namespace  = "default"
	targetPort = 8080
	portName   = "http"
	// BulkPort takes blocks (traffic.Sink), behind a Service.
	BulkPort = 5201
	// DirectPort and DirectBulkPort are served by the local pods, too, and are no Service's: nkp has nothing to do with
	// connections to them. Where there are port-reuse guards, it commits direct connections to a port of an endpoint to
	// conntrack (pipeline/README.md, "Port-reuse guards").
	DirectPort     = 8081
	DirectBulkPort = 5202
	// ClosedPort is no Service's, and no pod listens there.
	ClosedPort = 9
	// Movers are Services with one endpoint, which changes.
	Movers = 10
)

// serviceCIDR is that of test/k8s/e2e's API server.
const serviceCIDR = "40.0.0.0/16"

// Service names one Service of the run and says who is behind it.
type Service struct {
	Name      string
	VIP       string
	Port      int32 // of Service and endpoints
	Target    int32
	Endpoints []string // IPv4 addresses
}

// Frontend is where clients connect.
func (s Service) Frontend() string { return fmt.Sprintf("%s:%d", s.VIP, s.Port) }

// MostNumbered is how many there can be: the addresses of their endpoints end there.
const MostNumbered = 60_000

// Numbered is Service i of the many. Those that Live selects have the remote pods behind them, of which there are Endpoints, all
// others unused addresses.
func Numbered(i, endpoints int) Service {
	s := Service{Name: fmt.Sprintf("svc-%05d", i), VIP: fmt.Sprintf("40.0.%d.%d", 1+i/250, 1+i%250), Port: 80, Target: targetPort}
	live := Live(i)
	for j := range endpoints {
		switch {
		case !live:
			s.Endpoints = append(s.Endpoints, fmt.Sprintf("10.%d.%d.%d", 16+i/250, i%250, 1+j))
		case j < Endpoints:
			s.Endpoints = append(s.Endpoints, RemotePod(j))
		}
	}
	return s
}

// Live reports whether Service i has pods: the first ten and every hundredth.
func Live(i int) bool { return i < 10 || i%100 == 99 }

// LiveFrontends are where Services with pods among the first n are reached.
func LiveFrontends(n int) (list []string) {
	for i := range n {
		if Live(i) {
			list = append(list, Numbered(i, 0).Frontend())
		}
	}
	return list
}

// RemotePod and LocalPod are the addresses of pod j of the second node and of the node. Local pod 0 is the client.
func RemotePod(j int) string { return fmt.Sprintf("10.0.1.%d", 11+j) }
func LocalPod(j int) string  { return fmt.Sprintf("10.0.0.%d", 11+j) }

// Data is the Service whose packets are measured: ten pods of the node. Bulk has one: the
// same pod as without a Service.
func Data() Service {
	s := Service{Name: "data", VIP: "40.0.0.10", Port: 80, Target: targetPort}
	for j := range Endpoints {
		s.Endpoints = append(s.Endpoints, LocalPod(1+j))
	}
	return s
}

// Bulk is the Service for throughput.
func Bulk() Service {
	return Service{Name: "bulk", VIP: "40.0.0.11", Port: BulkPort, Target: BulkPort, Endpoints: []string{LocalPod(1)}}
}

// Mover is Service k of those whose endpoint moves; see NextMove.
func Mover(k int) Service {
	return Service{Name: fmt.Sprintf("mover-%d", k), VIP: fmt.Sprintf("40.0.0.%d", 20+k), Port: 80, Target: targetPort, Endpoints: []string{RemotePod(0)}}
}

// special are Data, Bulk and the Movers.
func special() []Service {
	list := []Service{Data(), Bulk()}
	for k := range Movers {
		list = append(list, Mover(k))
	}
	return list
}

// FillSpecial creates Data, Bulk and the Movers.
func (a *API) FillSpecial(ctx context.Context) error {
	for _, s := range special() {
		if err := a.create(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (a *API) create(ctx context.Context, s Service) error {
	service, slice := s.objects()
	if err := patiently(func() error {
		_, err := a.Client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return patiently(func() error {
		_, err := a.Client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
		return err
	})
}

// objects are what the API server holds of a Service.
func (s Service) objects() (*v1.Service, *discoveryv1.EndpointSlice) {
	ready, name, node := true, portName, remoteNode
	if s.Endpoints[0] == LocalPod(1) {
		node = nodeName
	}
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Name: s.Name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &s.Target}},
	}
	for _, ip := range s.Endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.SchemeGroupVersion.String(), Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: namespace},
		Spec:       v1.ServiceSpec{ClusterIP: s.VIP, Ports: []v1.ServicePort{{Name: name, Port: s.Port}}},
	}, slice
}

// patiently tries again what a busy server did not do in time. It may have done it all the same.
func patiently(create func() error) error {
	busy := func(err error) bool {
		return apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
			apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
	}
	err := retry.OnError(wait.Backoff{Steps: 6, Duration: 500 * time.Millisecond, Factor: 2}, busy, create)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// writeManifest writes to a file what FillSpecial and Fill make of an empty cluster, and the range of Services that the API
// server has.
func writeManifest(file string, services, endpoints int) error {
	list := special()
	for i := range services {
		list = append(list, Numbered(i, endpoints))
	}
	ranges := &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{serviceCIDR}},
	}
	all := v1.List{
		TypeMeta: metav1.TypeMeta{APIVersion: v1.SchemeGroupVersion.String(), Kind: "List"},
		Items:    []runtime.RawExtension{{Object: ranges}},
	}
	for _, s := range list {
		service, slice := s.objects()
		all.Items = append(all.Items, runtime.RawExtension{Object: service}, runtime.RawExtension{Object: slice})
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// NextMove returns a Mover and the pod that it is to move to, each time another one than it has now. It keeps count over
// the whole life of the API server, and must not be called by two goroutines at once.
func (a *API) NextMove() (s Service, to string) {
	// Each round moves all Movers to the same pod; none is the first, where they start.
	s, to = Mover(a.moves%Movers), RemotePod(1+a.moves/Movers%(Endpoints-1))
	a.moves++
	return s, to
}

// Move changes endpoint j of a Service to another address.
func (a *API) Move(ctx context.Context, service string, j int, to string) error {
	patch := fmt.Appendf(nil, `[{"op": "replace", "path": "/endpoints/%d/addresses/0", "value": %q}]`, j, to)
	_, err := a.Client.DiscoveryV1().EndpointSlices(namespace).Patch(ctx, service, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}
