package api

import (
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/localhost"
	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/windows"
)

// Status is what `nkp status -o json` prints.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Started time.Time `json:"started"`
	Mode    string    `json:"mode"`
	Reason  string    `json:"reason"` // why Mode was chosen

	Source SourceStatus `json:"source"`

	// Start has the durations of the phases of the start.
	Start StartStatus `json:"start"`

	ServicePorts int `json:"servicePorts"`
	Endpoints    int `json:"endpoints"`
	// Skipped are the Services, as namespace/name, that --skip-services leaves to another program of the
	// node.
	Skipped []string `json:"skipped,omitempty"`
	// Closing are the Services that close TCP connections to removed endpoints; nil: none does.
	Closing *ClosingStatus `json:"closing,omitempty"`

	// Loops are the goroutines that have made no progress for a second or more, with what they work on and
	// since when.
	Loops []dataplane.State `json:"loops,omitempty"`

	// Pending is what has come from the source and is not programmed yet.
	Pending metrics.Pending `json:"pending"`

	*bridge.Status // mode.OVS

	// IPTables is the data plane of mode.IPTables, or in mode.OVS that for the traffic of the node's own
	// processes.
	IPTables *fallback.Status `json:"iptables,omitempty"`
	// NFTables is the same with nftables.
	NFTables *fallback.Status `json:"nftables,omitempty"`
	HNS      *windows.Status  `json:"hns,omitempty"` // mode.Windows

	// Localhost is the proxy of NodePorts at [::1]; nil: none is served there.
	Localhost *localhost.Figures `json:"localhost,omitempty"`

	// Pings are those of Services' addresses, by data plane; nil: none are answered, or not yet counted.
	Pings map[string]dataplane.Pings `json:"pings,omitempty"`

	// Canary is what packets of nkp's own have shown of the data path, by data plane and family.
	Canary []dataplane.CanaryVerdict `json:"canary"`

	Warnings []string `json:"warnings"`
}

// ClosingStatus are the Services with k8s.AnnotationRemovedEndpoints.
type ClosingStatus struct {
	Services int `json:"services"`
	Draining int `json:"draining"` // removed endpoints whose connections stay for now
}

// SourceStatus is where objects come from.
type SourceStatus struct {
	Kind   string `json:"kind"`
	Synced bool   `json:"synced"`
	// Answers reports whether the API server answers now; nil: objects come from files.
	Answers *bool `json:"answers,omitempty"`
	// AwaySince is when it stopped answering; nil: it answers.
	AwaySince *time.Time `json:"awaySince,omitempty"`
	Errors    []string   `json:"errors"`
	// Revision names the manifests that everything else here is about (manifest.Source.Revision); "": changes
	// are still to be applied, or objects come from an API server. What Errors name of them is not in force.
	Revision string `json:"revision,omitempty"`
}

// StartStatus is the time line of the start, in milliseconds since the process began. What has not come yet
// is 0.
type StartStatus struct {
	Chosen float64      `json:"chosenMilliseconds"` // the data plane was found
	Lists  []ListStatus `json:"lists"`              // first lists of the API server, as they came in
	Synced float64      `json:"syncedMilliseconds"` // the source has synced
	Model  float64      `json:"modelMilliseconds"`  // it is known what that means for this node
	InStep float64      `json:"inStepMilliseconds"` // all of it is in force, including changes until then
}

// ListStatus is the first list of a kind.
type ListStatus struct {
	apiserver.ListStats
	Milli float64 `json:"milliseconds"`
}
