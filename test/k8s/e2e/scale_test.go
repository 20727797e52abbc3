package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	manyServices   = 10_000
	perService     = 10  // endpoints
	sampleEvery    = 200 // Services with pods; the endpoints of all others are nobody's
	endpointRounds = 30
	memoryBound    = 122 // resident, in units of a million bytes, once the lists are digested
)

// bulk is a cluster with many Services. Every sampleEvery-th has pods: those of the second node.
type bulk struct {
	*cluster
	client  *testbed.Pod
	remotes []*testbed.Pod
}

// name, vip and slice are of Service i; endpoint is its j-th.
func (b *bulk) name(i int) string     { return fmt.Sprintf("svc-%05d", i) }
func (b *bulk) vip(i int) string      { return fmt.Sprintf("40.0.%d.%d", 1+i/250, 1+i%250) }
func (b *bulk) slice(i int) string    { return b.name(i) + "-x" }
func (b *bulk) frontend(i int) string { return b.vip(i) + ":80" }
func (b *bulk) endpoint(i, j int) string {
	if i%sampleEvery == 0 {
		return b.remotes[j].IP4.String()
	}
	return fmt.Sprintf("10.%d.%d.%d", 16+i/250, i%250, 1+j)
}

func newBulk(t *testing.T) *bulk {
	t.Helper()
	b := &bulk{cluster: newCluster(t, layout{clusterCIDR: "10.0.0.0/8"})}
	var err error
	b.client, err = b.AddPod(testbed.PodSpec{})
	must(t, err)
	b.remotes, err = b.AddRemotePods(make([]testbed.PodSpec, perService)...)
	must(t, err)
	for _, p := range b.remotes {
		_, err := p.ServeTCP(targetPort)
		must(t, err)
	}
	return b
}

// load creates the objects through the API.
func (b *bulk) load() error {
	const workers = 16
	var wg sync.WaitGroup
	next, failed := make(chan int), make(chan error, workers)
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	for range workers {
		wg.Go(func() { // ends with next
			for i := range next {
				if err := b.create(ctx, i); err != nil {
					cancel()
					failed <- err
					return
				}
			}
		})
	}
	for i := range manyServices {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (b *bulk) create(ctx context.Context, i int) error {
	ready, port, portName, node := true, int32(targetPort), "http", otherNode
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: b.slice(i), Labels: map[string]string{discoveryv1.LabelServiceName: b.name(i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	for j := range perService {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{b.endpoint(i, j)}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	if err := patiently(func() error {
		_, err := b.cluster.client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return patiently(func() error {
		_, err := b.cluster.client.CoreV1().Services("default").Create(ctx, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: b.name(i)},
			Spec:       v1.ServiceSpec{ClusterIP: b.vip(i), Ports: []v1.ServicePort{{Name: portName, Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	})
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

// memory returns the resident memory of nkp, now and at its peak, in units of a million bytes.
func (b *bulk) memory() (resident, peak int) {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.agent.Cmd.Process.Pid), "status"))
	must(b.t, err)
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		switch f[0] {
		case "VmRSS:":
			resident, err = strconv.Atoi(f[1])
		case "VmHWM:":
			peak, err = strconv.Atoi(f[1])
		}
		must(b.t, err)
	}
	return resident << 10 / 1e6, peak << 10 / 1e6
}

// asks waits until a Service answers; by a pod, if one is given.
func (b *bulk) asks(i int, pod *testbed.Pod) {
	b.t.Helper()
	b.eventually(b.name(i)+" answers", func() error {
		ctx, cancel := context.WithTimeout(b.ctx, time.Second) // then it asks again
		defer cancel()
		a, err := b.client.AskWith(ctx, "tcp", b.frontend(i), testbed.AskOptions{DialOptions: testbed.DialOptions{Reset: true}})
		if err == nil && pod != nil && a.Pod != pod.Name {
			err = fmt.Errorf("answered by %s, want %s", a.Pod, pod.Name)
		}
		return err
	})
}

// 10,000 Services with 10 endpoints each, from a real API server: nkp programs and follows them in bounded memory. How fast it is,
// the benchmark tells.
func TestScale(t *testing.T) {
	nightly.Only(t, "it loads an API server with 20,000 objects; test/packets has many Services from a file")
	b := newBulk(t)
	must(t, b.load())
	b.startAgent("--log-level", "info")
	for i := 0; i < manyServices; i += sampleEvery {
		b.asks(i, nil)
	}
	if out, status := b.diff(); status != 0 {
		t.Errorf("nkp diff ends with %d: %s", status, harness.Tail(out, 1000))
	}
	b.checkMemory("settled")
	b.checkMoves()
	b.checkMemory("at the end")
	t.Logf("status:\n%s", b.status())
}

// checkMemory waits until nkp has digested what it was told, and holds no more than memoryBound.
func (b *bulk) checkMemory(when string) {
	b.t.Helper()
	b.eventually("bounded memory, "+when, func() error {
		resident, peak := b.memory()
		if resident > memoryBound {
			return fmt.Errorf("nkp has %d MB of memory, at most %d MB so far; want %d MB", resident, peak, memoryBound)
		}
		b.t.Logf("memory %s: %d MB, at most %d MB so far", when, resident, peak)
		return nil
	})
}

// checkMoves changes the only endpoint of Services, one after the other.
func (b *bulk) checkMoves() {
	b.t.Helper()
	const movers = 10 // Services
	for round := range endpointRounds {
		i, to := 1+round%movers, b.remotes[round%len(b.remotes)]
		patch := fmt.Appendf(nil, `[{"op": "replace", "path": "/endpoints", "value": [{"addresses": [%q], "nodeName": %q, "conditions": {"ready": true}}]}]`,
			to.IP4, otherNode)
		_, err := b.cluster.client.DiscoveryV1().EndpointSlices("default").Patch(b.ctx, b.slice(i), types.JSONPatchType, patch, metav1.PatchOptions{})
		must(b.t, err)
		b.asks(i, to)
	}
}
