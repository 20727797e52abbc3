//go:build linux

package rig

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Large is a Service with many of everything. All its endpoints are unused addresses.
type Large struct {
	Ports, Addresses, Endpoints int
	Consistent                  bool // clients from outside get endpoints by consistent choice
}

// PutLarge writes number Services of this kind into the node's manifests, in place of those that were there.
func (n *Node) PutLarge(l Large, number int) error {
	var items []runtime.RawExtension
	for i := range number {
		service, slice := l.objects(i)
		items = append(items, runtime.RawExtension{Object: service}, runtime.RawExtension{Object: slice})
	}
	return n.writeManifests("large.json", items)
}

// PutMover writes the Mover of a node without an API server, which the pod with this address serves.
func (n *Node) PutMover(pod string) (frontend string, err error) {
	s := Mover(Movers)
	s.Endpoints = []string{pod}
	service, slice := s.objects()
	return s.Frontend(), n.writeManifests("mover.json", []runtime.RawExtension{{Object: service}, {Object: slice}})
}

func (n *Node) writeManifests(name string, items []runtime.RawExtension) error {
	data, err := json.Marshal(v1.List{
		TypeMeta: metav1.TypeMeta{APIVersion: v1.SchemeGroupVersion.String(), Kind: "List"}, Items: items,
	})
	if err != nil {
		return err
	}
	file := filepath.Join(n.manifests(), name)
	if err := os.WriteFile(file+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// objects are those of Service i.
func (l Large) objects(i int) (*v1.Service, *discoveryv1.EndpointSlice) {
	s := Service{Name: fmt.Sprintf("large-%d", i), VIP: fmt.Sprintf("40.0.0.%d", 100+i), Port: 80, Target: targetPort}
	for j := range l.Endpoints {
		s.Endpoints = append(s.Endpoints, fmt.Sprintf("10.%d.%d.%d", 32+i, j/250, 1+j%250))
	}
	service, slice := s.objects()
	if l.Consistent {
		service.Annotations = map[string]string{"nkp-proxy.github.io/consistent": "true"}
		service.Spec.Type = v1.ServiceTypeNodePort
	}
	for j := range l.Addresses {
		service.Spec.ExternalIPs = append(service.Spec.ExternalIPs, fmt.Sprintf("50.%d.%d.%d", i, j/250, 1+j%250))
	}
	service.Spec.Ports, slice.Ports = nil, nil
	for j := range l.Ports {
		name, target := fmt.Sprintf("p%d", j), int32(targetPort)
		p := v1.ServicePort{Name: name, Port: int32(80 + j)}
		if l.Consistent {
			p.NodePort = int32(30000 + j)
		}
		service.Spec.Ports = append(service.Spec.Ports, p)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &target})
	}
	return service, slice
}
