package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// podFinder is a source of Services that can look up the addresses of a pod.
type podFinder interface {
	PodIPs(ctx context.Context, namespace, name string) ([]netip.Addr, error)
}

// podTimeout bounds how long the API server is waited for.
const podTimeout = 5 * time.Second

// PodAddresses returns the addresses of a pod: those of the bridge's port whose iface-id is its name, or else
// those that the source returns. It returns at least one unless it fails. db is nil if there is no switch to
// ask.
func PodAddresses(
	ctx context.Context, db *ovsdb.Switch, source any, pod k8s.ServiceName,
) ([]netip.Addr, error) {
	if pod == (k8s.ServiceName{}) {
		return nil, nil
	}
	if db != nil {
		id := pod.Namespace + "_" + pod.Name // OVN-Kubernetes' iface-id; neither part can contain "_"
		for i := range db.Ports {
			if p := &db.Ports[i]; p.IfaceID == id && len(p.IPs) > 0 {
				return p.IPs, nil
			}
		}
	}
	finder, ok := source.(podFinder)
	if !ok {
		return nil, fmt.Errorf("pod %s is not known here: pass the pod's address", pod)
	}
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	return finder.PodIPs(ctx, pod.Namespace, pod.Name)
}
