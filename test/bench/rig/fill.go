//go:build linux

package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	etcdAddress  = "127.0.0.1:2379" // in the API server's namespace
	etcdMostPuts = 128              // in one transaction
)

// Fill creates the numbered Services from (included) to (not), with so many endpoints each. The API server creates the first one. The
// others are copies of its objects, written into etcd as the API server stores them, because its own creation takes time that grows
// with the square of their number: for two metrics it lists all ClusterIPs twice for each Service
// (k8s.io/kubernetes/pkg/registry/core/service/ipallocator, createIPAddress). ClusterIPs come first, since the API server repairs
// Services without one. Fill returns when the API server's caches have everything and it is at rest.
func (a *API) Fill(ctx context.Context, from, to, endpoints int) error {
	if from >= to {
		return nil
	}
	if err := a.create(ctx, Numbered(from, endpoints)); err != nil {
		return err
	}
	first, err := a.stored(ctx, Numbered(from, endpoints))
	if err != nil {
		return err
	}
	etcd := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return a.bed.Node.DialTCP(ctx, etcdAddress, testbed.DialOptions{})
	}}}
	defer etcd.CloseIdleConnections()
	last := Numbered(to-1, 0)
	if err := first.copies(ctx, etcd, from+1, to, endpoints, (*stored).addressOf); err != nil {
		return err
	}
	cached := metav1.GetOptions{ResourceVersion: "0"} // as the API server answers a proxy's first lists
	if err := await(ctx, func(ctx context.Context) error {
		_, err := a.Client.NetworkingV1().IPAddresses().Get(ctx, last.VIP, cached)
		return err
	}); err != nil {
		return err
	}
	if err := first.copies(ctx, etcd, from+1, to, endpoints, (*stored).serviceOf, (*stored).sliceOf); err != nil {
		return err
	}
	if err := await(ctx, func(ctx context.Context) error {
		_, err := a.Client.CoreV1().Services(namespace).Get(ctx, last.Name, cached)
		if err == nil {
			_, err = a.Client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, last.Name, cached)
		}
		return err
	}); err != nil {
		return err
	}
	return a.rest(ctx)
}

// rest waits until the API server uses less than a fifth of a core for a second: after 100,000 new objects it is busy for some seconds,
// for which a proxy's first start would pay.
func (a *API) rest(ctx context.Context) error {
	const look = time.Second
	before, err := CPU(a.PID())
	if err != nil {
		return err
	}
	return await(ctx, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
		now, err := CPU(a.PID())
		if err != nil {
			return err
		}
		used := now - before
		before = now
		if used >= look/5 {
			return fmt.Errorf("it is busy: %v of processor time in %v", used, look)
		}
		return nil
	})
}

// await asks again and again until there is no error, at most two minutes.
func await(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready for a measurement: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// object is what the client has of an object of the API server.
type object interface {
	metav1.Object
	runtime.Object
}

// stored are the objects that the API server keeps of a Service.
type stored struct {
	service *v1.Service
	slice   *discoveryv1.EndpointSlice
	address *networkingv1.IPAddress
}

func (a *API) stored(ctx context.Context, s Service) (o stored, err error) {
	if o.service, err = a.Client.CoreV1().Services(namespace).Get(ctx, s.Name, metav1.GetOptions{}); err != nil {
		return o, err
	}
	if o.slice, err = a.Client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, s.Name, metav1.GetOptions{}); err != nil {
		return o, err
	}
	o.address, err = a.Client.NetworkingV1().IPAddresses().Get(ctx, s.VIP, metav1.GetOptions{})
	return o, err
}

// put is one object in etcd, in the form of etcd's JSON gateway.
type put struct {
	Put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"requestPut"`
}

// copies writes objects of the numbered Services from (included) to (not) into etcd.
func (o *stored) copies(ctx context.Context, etcd *http.Client, from, to, endpoints int, objects ...func(*stored, Service) (put, error)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	most := etcdMostPuts / len(objects)
	for i := from; i < to && ctx.Err() == nil; i += most {
		g.Go(func() error {
			var puts []put
			for j := i; j < min(i+most, to); j++ {
				for _, of := range objects {
					p, err := of(o, Numbered(j, endpoints))
					if err != nil {
						return err
					}
					puts = append(puts, p)
				}
			}
			return write(ctx, etcd, puts)
		})
	}
	return g.Wait()
}

func (o *stored) serviceOf(s Service) (put, error) {
	c := o.service.DeepCopy()
	c.Spec.ClusterIP, c.Spec.ClusterIPs = s.VIP, []string{s.VIP}
	return putOf(c, "/registry/services/specs/"+namespace+"/", s.Name, v1.SchemeGroupVersion.WithKind("Service"))
}

func (o *stored) sliceOf(s Service) (put, error) {
	c := o.slice.DeepCopy()
	_, own := s.objects()
	c.Labels[discoveryv1.LabelServiceName], c.Endpoints = s.Name, own.Endpoints
	return putOf(c, "/registry/endpointslices/"+namespace+"/", s.Name, discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
}

func (o *stored) addressOf(s Service) (put, error) {
	c := o.address.DeepCopy()
	c.Spec.ParentRef.Name = s.Name
	// The API server deletes one that is older than a minute and whose Service it does not have yet. This one is not old for an hour.
	c.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
	return putOf(c, "/registry/ipaddresses/", s.VIP, networkingv1.SchemeGroupVersion.WithKind("IPAddress"))
}

func putOf(o object, folder, name string, kind schema.GroupVersionKind) (p put, err error) {
	o.SetName(name)
	o.SetUID(uuid.NewUUID())
	o.SetResourceVersion("")
	o.GetObjectKind().SetGroupVersionKind(kind)
	var value bytes.Buffer
	err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &value)
	p.Put.Key, p.Put.Value = []byte(folder+name), value.Bytes()
	return p, err
}

// write writes objects into etcd in one transaction.
func write(ctx context.Context, etcd *http.Client, puts []put) error {
	body, err := json.Marshal(map[string][]put{"success": puts})
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+etcdAddress+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := etcd.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd: %s: %.300s", answer.Status, text)
	}
	return err
}
