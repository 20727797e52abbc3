package hns

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/Microsoft/hcsshim/hcn"
	"github.com/sirupsen/logrus"
)

// Open returns the HNS of this machine. It fails if this Windows has no HCN API.
func Open() (Host, error) {
	for _, p := range []interface{ Find() error }{procEnumerateNetworks, procEnumerateEndpoints, procEnumerateLoadBalancers, procHNSCall} {
		if err := p.Find(); err != nil { // hcsshim panics later if it is missing
			return nil, fmt.Errorf("this Windows has no Host Compute Network API: %w: %s", err, hintFeature)
		}
	}
	if os.Getenv("NKP_DEBUG_HNS") != "" {
		logrus.SetLevel(logrus.DebugLevel)
	} else {
		logrus.SetLevel(logrus.WarnLevel)
	}
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
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
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
	ids, err := enumerate(procEnumerateNetworks, map[string]string{"Name": name})
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, &Error{Call: procEnumerateNetworks.Name, Code: CodeElementNotFound, Text: "no network " + name}
	}
	return m.Network(ids[0])
}

func (machine) EndpointIDs(network string) ([]string, error) {
	return enumerate(procEnumerateEndpoints, map[string]string{"VirtualNetwork": network})
}

func (m machine) Endpoints(network string) ([]*Endpoint, error) {
	list, err := hcn.ListEndpointsOfNetwork(network)
	if err == nil {
		endpoints := make([]*Endpoint, len(list))
		for i := range list {
			endpoints[i] = fromHCNEndpoint(&list[i])
		}
		return endpoints, nil
	}
	// One endpoint that vanishes while the list is read fails the whole list: read them one by one.
	return oneByOne(func() ([]string, error) { return m.EndpointIDs(network) }, m.Endpoint)
}

func (machine) Endpoint(id string) (*Endpoint, error) {
	e, err := hcn.GetEndpointByID(id)
	if err != nil {
		return nil, fault("HcnOpenEndpoint", err)
	}
	return fromHCNEndpoint(e), nil
}

func (machine) EndpointNamed(name string) (*Endpoint, error) {
	e, err := hcn.GetEndpointByName(name)
	if err != nil {
		return nil, fault("HcnOpenEndpoint", err)
	}
	return fromHCNEndpoint(e), nil
}

func (machine) CreateEndpoint(e *Endpoint) (*Endpoint, error) {
	made, err := (&hcn.HostComputeNetwork{Id: e.HostComputeNetwork}).CreateEndpoint(toHCNEndpoint(e))
	if err != nil {
		return nil, fault("HcnCreateEndpoint", err)
	}
	return fromHCNEndpoint(made), nil
}

func (machine) DeleteEndpoint(id string) error {
	return fault("HcnDeleteEndpoint", (&hcn.HostComputeEndpoint{Id: id}).Delete())
}

func (machine) LoadBalancerIDs() ([]string, error) { return enumerate(procEnumerateLoadBalancers, nil) }

func (m machine) LoadBalancers() ([]*LoadBalancer, error) {
	list, err := hcn.ListLoadBalancers()
	if err == nil {
		lbs := make([]*LoadBalancer, len(list))
		for i := range list {
			lbs[i] = fromHCNLoadBalancer(&list[i])
		}
		return lbs, nil
	}
	return oneByOne(m.LoadBalancerIDs, m.LoadBalancer)
}

func (machine) LoadBalancer(id string) (*LoadBalancer, error) {
	l, err := hcn.GetLoadBalancerByID(id)
	if err != nil {
		return nil, fault("HcnOpenLoadBalancer", err)
	}
	return fromHCNLoadBalancer(l), nil
}

func (machine) LoadBalancerStates() (map[string]int, error) {
	var list PolicyLists
	err := listV1("/policylists", &list)
	return list.States(), err
}

func (machine) CreateLoadBalancer(l *LoadBalancer) (*LoadBalancer, error) {
	made, err := toHCNLoadBalancer(l).Create()
	if err != nil {
		return nil, fault("HcnCreateLoadBalancer", err)
	}
	return fromHCNLoadBalancer(made), nil
}

func (machine) ModifyLoadBalancer(id string, l *LoadBalancer) (*LoadBalancer, error) {
	now, err := toHCNLoadBalancer(l).Update(id)
	if err != nil {
		return nil, fault("HcnModifyLoadBalancer", err)
	}
	return fromHCNLoadBalancer(now), nil
}

func (machine) DeleteLoadBalancer(id string) error {
	return fault("HcnDeleteLoadBalancer", (&hcn.HostComputeLoadBalancer{Id: id}).Delete())
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

// fault turns an error of hcsshim into one of this package. hcsshim appends HNS's error record to its text, and does not
// expose the record's code, which is the one that matters.
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
