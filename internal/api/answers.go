package api

import (
	"context"
	"log/slog"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// PodList is the output of `nkp pods -o json`: the bridge's ports that lead to pods.
type PodList struct {
	Node   string    `json:"node"`
	Bridge string    `json:"bridge"`
	Ports  []PodPort `json:"ports"` // by OpenFlow number
	// Notes are about the whole list, such as that ovs-vswitchd does not answer.
	Notes []string `json:"notes"`
}

// PodPort is a pod's port of the bridge, as the database shows it.
type PodPort struct {
	Port      string       `json:"port"`    // name of the interface
	OFPort    uint32       `json:"ofPort"`  // 0: ovs-vswitchd has not given it a number
	IfaceID   string       `json:"ifaceID"` // external_ids:iface-id
	Addresses []netip.Addr `json:"addresses"`
	MAC       string       `json:"mac"`  // "": not known
	VLAN      uint16       `json:"vlan"` // access or native VLAN, 0: none
	Trunks    []uint16     `json:"trunks"`
	Link      string       `json:"link"`  // up, down, or - for an interface that has no carrier to report
	State     string       `json:"state"` // ok, limited: some packets are kept back, or dead: nothing passes
	// Problems are what the database, ovs-vswitchd and the kernel say against the port, each with what to
	// look at.
	Problems []string `json:"problems"`
}

// Pods asks for the bridge's ports that lead to pods.
func (c *Caller) Pods(ctx context.Context) (*PodList, error) {
	return fetch[PodList](ctx, c, GetPods, nil)
}

// FlowList is the output of `nkp flows -o json`: what is installed of a Service. No list in it is null.
type FlowList struct {
	Node         string             `json:"node"`
	Mode         string             `json:"mode"`
	ServicePorts int                `json:"servicePorts"` // that have the name, by family
	Objects      []dataplane.Object `json:"objects"`      // by data plane and Service port
	More         int                `json:"more"`         // number of objects that are left out
}

// Flows asks what is installed of a Service, or with the name "" of all, with at most most objects; 0: as
// many as the agent lists.
func (c *Caller) Flows(ctx context.Context, namespace, name string, most int) (*FlowList, error) {
	q := url.Values{"namespace": {namespace}, "name": {name}, "most": {strconv.Itoa(most)}}
	return fetch[FlowList](ctx, c, GetFlows, q)
}

// InForce answers which versions of a Service and its EndpointSlices are in force on a node.
type InForce struct {
	k8s.Versions // as received; in force if Why is ""
	// Why says why they are not in force, or not known to be. Final is set if that stays so for these
	// versions.
	Why   string `json:"why,omitempty"`
	Final bool   `json:"final,omitempty"`
}

// InForce asks which versions of a Service are in force.
func (c *Caller) InForce(ctx context.Context, name k8s.ServiceName) (*InForce, error) {
	q := url.Values{"namespace": {name.Namespace}, "name": {name.Name}}
	return fetch[InForce](ctx, c, GetInForce, q)
}

// Report is what a bug report has of a node besides the answers to other commands.
type Report struct {
	Version       string         `json:"version"`
	Platform      string         `json:"platform"`
	Uname         string         `json:"uname"`
	Configuration map[string]any `json:"configuration"`
	Conntrack     any            `json:"conntrack"` // entries, by zone where there are zones
	Database      string         `json:"database"`  // what nkp reads of Open vSwitch's database
	Log           string         `json:"log"`       // its newest lines
}

// Report asks for what a bug report has besides the answers to other commands.
func (c *Caller) Report(ctx context.Context) (*Report, error) {
	return fetch[Report](ctx, c, GetReport, nil)
}

// LogLevelChange is the answer to a request that sets the log level.
type LogLevelChange struct {
	Before slog.Level `json:"before"`
	Now    slog.Level `json:"now"`
}

// SetLogLevel has the agent log from a level on until it restarts.
func (c *Caller) SetLogLevel(ctx context.Context, level string) (*LogLevelChange, error) {
	return fetch[LogLevelChange](ctx, c, SetLogLevel, url.Values{"level": {level}})
}
