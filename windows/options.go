package windows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/windows/hns"
	"github.com/nkp-proxy/nkp/windows/reconcile"
)

// Options are the settings of a Plane. The first ones are kube-proxy's flags of the same name.
type Options struct {
	// NetworkName is the CNI plugin's HNS network (--network-name); "": the environment variable
	// KUBE_NETWORK.
	NetworkName string
	// SourceVIP is the source address of load-balanced connections (--source-vip). The zero Addr: on overlay
	// networks the address of the endpoint Calico_ep, once it exists, or of the one that kube-proxy
	// or nkp made for it before; on others HNS chooses.
	SourceVIP netip.Addr
	// EnableDSR enables Direct Server Return for ClusterIPs (--enable-dsr).
	EnableDSR bool
	// RootEndpointName is the endpoint of the host (--root-hnsendpoint-name); "": cbr0, as in kube-proxy.
	// ForwardHealthCheckVIP has health checks of load balancers forwarded to it (--forward-healthcheck-vip).
	RootEndpointName      string
	ForwardHealthCheckVIP bool
	// HealthzPort is the port of --healthz-bind-address; 0: none.
	HealthzPort uint16

	// HostMAC is the MAC address of the interface that has the node's address; "": it is looked up.
	HostMAC string
	Hooks   dataplane.Hooks

	// TakeOver makes nkp delete load balancers that kube-proxy left for Services that are gone
	// (--hns-take-over).
	TakeOver bool
	// StateFile is the file that records which objects of HNS are nkp's; "": DefaultStateFile.
	StateFile string
	// MinSync is the minimum time between two syncs, AuditPeriod the maximum between two enumerations of
	// HNS's objects, FullAuditPeriod the maximum between two reads of every object. Zero: 1 s, 30 s, 1 h.
	MinSync, AuditPeriod, FullAuditPeriod time.Duration
	Log                                   *slog.Logger // nil: slog.Default()

	// Open opens the HNS; nil: this machine's.
	Open func() (hns.Host, error)

	now        func() time.Time                              // the clock for retries and audits; nil: time.Now
	portBlocks func(ctx context.Context) (PortBlocks, error) // nil: freePortBlocks
}

// How long a Plane waits.
const (
	defaultMinSync   = time.Second
	defaultAudit     = 30 * time.Second
	defaultFullAudit = time.Hour
	rereadSlice      = time.Second      // the longest part of a full read between two syncs
	statePeriod      = 5 * time.Minute  // between two reads of load balancers' States, and of free ports
	portsTime        = time.Minute      // for a read of free ports; less than statePeriod
	waitPollMost     = 30 * time.Second // between checks for objects that the CNI plugin has yet to create

	calicoEndpoint      = "Calico_ep" // holds the source VIP
	defaultRootEndpoint = "cbr0"
)

// DefaultStateFile returns the default path of the state file: %ProgramData%\nkp\hns.json.
func DefaultStateFile() string {
	dir := os.Getenv("ProgramData")
	if dir == "" {
		dir = `C:\ProgramData`
	}
	return filepath.Join(dir, "nkp", "hns.json")
}

// complete fills in defaults.
func (o *Options) complete() error {
	if o.NetworkName = o.network(); o.NetworkName == "" {
		return errors.New("the HNS network of the pods is not known: set --network-name or the environment " +
			"variable KUBE_NETWORK")
	}
	if o.SourceVIP.IsValid() && !o.SourceVIP.Is4() {
		return fmt.Errorf("--source-vip %s is not an IPv4 address", o.SourceVIP)
	}

	setDefault(&o.RootEndpointName, defaultRootEndpoint)
	setDefault(&o.StateFile, DefaultStateFile())
	setDefault(&o.MinSync, defaultMinSync)
	setDefault(&o.AuditPeriod, defaultAudit)
	setDefault(&o.FullAuditPeriod, defaultFullAudit)
	o.Hooks = o.Hooks.WithDefaults()

	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Open == nil {
		o.Open = hns.Open
	}
	if o.portBlocks == nil {
		o.portBlocks = freePortBlocks
	}
	if o.now == nil {
		o.now = time.Now
	}
	return nil
}

// network returns the name of the network; "": it is not configured.
func (o *Options) network() string { return cmp.Or(o.NetworkName, os.Getenv("KUBE_NETWORK")) }

func (o *Options) store() reconcile.StateFile { return reconcile.StateFile(o.StateFile) }

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
