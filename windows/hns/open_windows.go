package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/Microsoft/hcsshim/hcn"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/windows"
)

// Open returns the HNS of this machine. It fails if this Windows has no HCN API.
func Open() (Host, error) {
	procs := []*windows.LazyProc{procHNSCall}
	for _, k := range []Kind{KindNetwork, KindEndpoint, KindLoadBalancer} {
		procs = append(procs, procOf("Enumerate", k, "s"), procOf("Open", k, ""), procOf("Create", k, ""), procOf("Delete", k, ""))
	}
	for _, p := range procs {
		if err := p.Find(); err != nil { // a call would panic
			return nil, fmt.Errorf("this Windows has no Host Compute Network API: %w: %s", err, hintFeature)
		}
	}

	level := logrus.WarnLevel
	if os.Getenv("NKP_DEBUG_HNS") != "" {
		level = logrus.DebugLevel
	}
	logrus.SetLevel(level)
	return machine{}, nil
}

// machine is the Host that calls this machine's HNS through hcsshim. It has no state.
type machine struct{}

func (machine) Version() (v Version, err error) {
	err = listV1("/globals/version", &v) // hcn.GetGlobals hides the code of an error
	return v, err
}

func (machine) NetworkNames() ([]string, error) {
	list, err := hcn.ListNetworks()
	if err != nil {
		return nil, fault("HcnEnumerateNetworks", err)
	}
	var names []string
	for _, n := range list {
		names = append(names, n.Name)
	}
	return names, nil
}

func (m machine) Network(id string) (*Network, error) {
	text, err := raw{m}.Query(KindNetwork, id) // hcn.GetNetworkByID enumerates before it opens
	if err != nil {
		return nil, err
	}
	return ParseNetwork(text)
}

func (m machine) NetworkNamed(name string) (*Network, error) {
	ids, err := enumerate(KindNetwork, map[string]string{"Name": name})
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, &Error{Call: "HcnEnumerateNetworks", Code: CodeElementNotFound, Text: "no network " + name}
	}
	return m.Network(ids[0])
}

func (machine) EndpointIDs(network string) ([]string, error) {
	return enumerate(KindEndpoint, map[string]string{"VirtualNetwork": network})
}

func (m machine) Endpoints(network string) ([]*Endpoint, error) {
	list, err := hcn.ListEndpointsOfNetwork(network)
	if err != nil { // one endpoint that vanishes while the list is read fails the whole list
		return oneByOne(func() ([]string, error) { return m.EndpointIDs(network) }, m.Endpoint)
	}
	endpoints := make([]*Endpoint, len(list))
	for i := range list {
		endpoints[i] = endpointOf(&list[i])
	}
	return endpoints, nil
}

func (machine) Endpoint(id string) (*Endpoint, error) {
	e, err := hcn.GetEndpointByID(id)
	return endpointOf(e), fault("HcnOpenEndpoint", err)
}

func (machine) EndpointNamed(name string) (*Endpoint, error) {
	e, err := hcn.GetEndpointByName(name)
	return endpointOf(e), fault("HcnOpenEndpoint", err)
}

func (machine) CreateEndpoint(e *Endpoint) (*Endpoint, error) {
	network := &hcn.HostComputeNetwork{Id: e.HostComputeNetwork}
	made, err := network.CreateEndpoint(convert[hcn.HostComputeEndpoint](e))
	return endpointOf(made), fault("HcnCreateEndpoint", err)
}

func (machine) DeleteEndpoint(id string) error {
	return fault("HcnDeleteEndpoint", (&hcn.HostComputeEndpoint{Id: id}).Delete())
}

func (machine) LoadBalancerIDs() ([]string, error) { return enumerate(KindLoadBalancer, nil) }

func (m machine) LoadBalancers() ([]*LoadBalancer, error) {
	list, err := hcn.ListLoadBalancers()
	if err != nil {
		return oneByOne(m.LoadBalancerIDs, m.LoadBalancer)
	}
	lbs := make([]*LoadBalancer, len(list))
	for i := range list {
		lbs[i] = loadBalancerOf(&list[i])
	}
	return lbs, nil
}

func (machine) LoadBalancer(id string) (*LoadBalancer, error) {
	l, err := hcn.GetLoadBalancerByID(id)
	return loadBalancerOf(l), fault("HcnOpenLoadBalancer", err)
}

func (machine) LoadBalancerStates() (map[string]int, error) {
	var list PolicyLists
	err := listV1("/policylists", &list)
	return list.States(), err
}

func (machine) CreateLoadBalancer(l *LoadBalancer) (*LoadBalancer, error) {
	made, err := convert[hcn.HostComputeLoadBalancer](l).Create()
	return loadBalancerOf(made), fault("HcnCreateLoadBalancer", err)
}

func (machine) ModifyLoadBalancer(id string, l *LoadBalancer) (*LoadBalancer, error) {
	now, err := convert[hcn.HostComputeLoadBalancer](l).Update(id)
	return loadBalancerOf(now), fault("HcnModifyLoadBalancer", err)
}

func (machine) DeleteLoadBalancer(id string) error {
	return fault("HcnDeleteLoadBalancer", (&hcn.HostComputeLoadBalancer{Id: id}).Delete())
}

// convert copies an object between hcsshim's types, which exist on Windows only, and this package's. Both
// have the JSON of the API.
func convert[To any](from any) *To {
	var to To
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, &to)
	}
	if err != nil {
		panic(err) // the types no longer agree
	}
	return &to
}

// endpointOf converts an endpoint; nil if HNS returned none.
func endpointOf(h *hcn.HostComputeEndpoint) *Endpoint {
	if h == nil {
		return nil
	}
	e := convert[Endpoint](h)
	e.ID, e.HostComputeNetwork = CanonicalID(e.ID), CanonicalID(e.HostComputeNetwork)
	return e
}

// loadBalancerOf converts a load balancer; nil if HNS returned none.
func loadBalancerOf(h *hcn.HostComputeLoadBalancer) *LoadBalancer {
	if h == nil {
		return nil
	}
	l := convert[LoadBalancer](h)
	l.ID = CanonicalID(l.ID)
	for i, id := range l.HostComputeEndpoints {
		l.HostComputeEndpoints[i] = CanonicalID(id)
	}
	return l
}

// oneByOne reads the objects that an enumeration names. It skips objects that have vanished meanwhile.
func oneByOne[T any](ids func() ([]string, error), read func(id string) (*T, error)) ([]*T, error) {
	names, err := ids()
	if err != nil {
		return nil, err
	}
	objects := make([]*T, 0, len(names))
	for _, id := range names {
		o, err := read(id)
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// fault turns an error of hcsshim into one of this package. hcsshim appends HNS's error record to its text,
// and does not expose the record's code, which is the one that matters.
func fault(call string, err error) error {
	if err == nil {
		return nil
	}
	if hcn.IsNotFoundError(err) {
		return &Error{Call: call, Code: CodeElementNotFound, Text: err.Error()}
	}
	var e *hcn.HcnError
	if !errors.As(err, &e) {
		return &Error{Call: call, Text: err.Error()}
	}
	var code syscall.Errno
	errors.As(e.Err, &code) // none: HNS gave S_OK and an error record
	text := err.Error()
	var record string
	if i := strings.Index(text, "{"); i >= 0 {
		record = text[i:]
	}
	if code == 0 && record == "" {
		return &Error{Call: call, Text: text}
	}
	hresult := uint32(code)
	if code != 0 && hresult < 0x10000 {
		hresult |= 0x80070000 // hcsshim has made a Win32 code of it
	}
	return ParseError(call, hresult, record)
}
