package differential

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/oracle"
)

// KubeProxy is what kube-proxy's proxiers do before they write rules: a pair of trackers for each family.
type KubeProxy struct {
	topology map[string]string                      // labels of this node
	services map[k8s.Ref]*v1.Service                // what the informer holds
	slices   map[k8s.Ref]*discoveryv1.EndpointSlice // what the informer holds
	leftBy   map[k8s.ServiceName]bool               // Services whose name was taken off a slice by an update
	proxiers []*proxier
}

// proxier is kube-proxy in one family.
type proxier struct {
	family          k8s.Family
	serviceChanges  *proxy.ServiceChangeTracker
	endpointChanges *proxy.EndpointsChangeTracker
	services        proxy.ServicePortMap
	endpoints       proxy.EndpointsMap
}

// NewKubeProxy returns a kube-proxy that has seen nothing yet.
func NewKubeProxy() *KubeProxy {
	k := &KubeProxy{services: map[k8s.Ref]*v1.Service{}, slices: map[k8s.Ref]*discoveryv1.EndpointSlice{}}
	k.start()
	return k
}

// start begins with what the informers hold, and remembers nothing else.
func (k *KubeProxy) start() {
	k.topology, k.leftBy, k.proxiers = nil, map[k8s.ServiceName]bool{}, nil
	for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		p := newProxier(f)
		for _, o := range k.services {
			p.serviceChanges.Update(nil, o)
		}
		for _, o := range k.slices {
			p.endpointChanges.EndpointSliceUpdate(o, false)
		}
		k.proxiers = append(k.proxiers, p)
	}
}

func newProxier(f k8s.Family) *proxier {
	return &proxier{
		family:          f,
		serviceChanges:  proxy.NewServiceChangeTracker(v1.IPFamily(f.String()), nil, nil),
		endpointChanges: proxy.NewEndpointsChangeTracker(v1.IPFamily(f.String()), oracle.ThisNode, nil, nil),
		services:        proxy.ServicePortMap{},
		endpoints:       proxy.EndpointsMap{},
	}
}

// Apply takes an object as it is stored, nil if it is gone, as the informers would tell of it.
func (k *KubeProxy) Apply(ref k8s.Ref, o k8s.Object) {
	switch ref.Kind {
	case k8s.KindService:
		service, _ := o.(*v1.Service)
		k.applyService(ref, service)
	case k8s.KindEndpointSlice:
		slice, _ := o.(*discoveryv1.EndpointSlice)
		k.applySlice(ref, slice)
	case k8s.KindNode:
		if ref.Name != oracle.ThisNode {
			return
		}
		node, _ := o.(*v1.Node)
		if node == nil { // the process exits when the Node is deleted (NodeManager.OnNodeDelete), and is started again
			k.start()
			return
		}
		k.topology = map[string]string{}
		if zone, ok := node.Labels[v1.LabelTopologyZone]; ok {
			k.topology[v1.LabelTopologyZone] = zone
		}
	}
}

func (k *KubeProxy) applyService(ref k8s.Ref, o *v1.Service) {
	before := k.services[ref]
	if o != nil && !seesService(o) {
		o = nil
	}
	if o == nil {
		delete(k.services, ref)
	} else {
		k.services[ref] = o
	}
	for _, p := range k.proxiers {
		p.serviceChanges.Update(before, o)
	}
}

func (k *KubeProxy) applySlice(ref k8s.Ref, o *discoveryv1.EndpointSlice) {
	before := k.slices[ref]
	if o != nil && !seesSlice(o) {
		o = nil
	}
	switch {
	case o == nil && before == nil:
	case o == nil:
		delete(k.slices, ref)
		for _, p := range k.proxiers {
			p.endpointChanges.EndpointSliceUpdate(before, true)
		}
	default:
		if before != nil && ownerOf(before) != ownerOf(o) {
			k.leftBy[ownerOf(before)] = true
		}
		k.slices[ref] = o
		for _, p := range k.proxiers {
			p.endpointChanges.EndpointSliceUpdate(o, false)
		}
	}
}

// Sync brings the maps of the proxiers up to date, as syncProxyRules does first.
func (k *KubeProxy) Sync() {
	for _, p := range k.proxiers {
		p.services.Update(p.serviceChanges)
		p.endpoints.Update(p.endpointChanges)
	}
}

// ownerOf names the Service that a slice says it belongs to.
func ownerOf(o *discoveryv1.EndpointSlice) k8s.ServiceName {
	return k8s.ServiceName{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}
}
