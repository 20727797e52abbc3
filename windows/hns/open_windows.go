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
		procs = append(procs, procOf("Enumerate", k, "s"), procOf("Query", k, "Properties"))
		for _, op := range []string{"Open", "Close", "Create", "Delete"} {
			procs = append(procs, procOf(op, k, ""))
		}
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

func (machine) Network(id string) (*Network, error) {
	text, err := raw{}.Query(KindNetwork, id) // hcn.GetNetworkByID enumerates before it opens
	if err != nil {
		return nil, err
	}
	return ParseNetwork(text)
}

func (m machine) NetworkNamed(name string) (*Network, error) {
	id, err := named(KindNetwork, name)
	if err != nil {
		return nil, err
	}
	return m.Network(id)
}

// named returns the id of the first object with a name.
func named(k Kind, name string) (string, error) {
	ids, err := enumerate(k, map[string]string{"Name": name})
	if err != nil {
		return "", err
	}
	if len(ids) == 0 {
		text := fmt.Sprintf("no %s named %s", k, name)
		return "", &Error{Call: "HcnEnumerate" + string(k) + "s", Code: CodeElementNotFound, Text: text}
	}
	return ids[0], nil
}

// read reads an object. hcsshim would enumerate first.
func read[T any](k Kind, id string) (*T, error) {
	text, err := raw{}.Query(k, id)
	if err != nil {
		return nil, err
	}
	var t T
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, fmt.Errorf("an object of HNS does not parse: %w", err)
	}
	return &t, nil
}

func (machine) EndpointIDs(network string) ([]string, error) {
	return enumerate(KindEndpoint, map[string]string{"VirtualNetwork": network})
}

func (machine) Endpoint(id string) (*Endpoint, error) {
	return canonicalEndpoint(read[Endpoint](KindEndpoint, id))
}

func (m machine) EndpointNamed(name string) (*Endpoint, error) {
	id, err := named(KindEndpoint, name)
	if err != nil {
		return nil, err
	}
	return m.Endpoint(id)
}

func (machine) CreateEndpoint(e *Endpoint) (*Endpoint, error) {
	network := &hcn.HostComputeNetwork{Id: e.HostComputeNetwork}
	made, err := network.CreateEndpoint(convert[hcn.HostComputeEndpoint](e))
	if err != nil {
		return nil, fault("HcnCreateEndpoint", err)
	}
	return canonicalEndpoint(convert[Endpoint](made), nil)
}

func (machine) DeleteEndpoint(id string) error {
	return fault("HcnDeleteEndpoint", (&hcn.HostComputeEndpoint{Id: id}).Delete())
}

func (machine) LoadBalancerIDs() ([]string, error) { return enumerate(KindLoadBalancer, nil) }

func (machine) LoadBalancer(id string) (*LoadBalancer, error) {
	return canonicalLoadBalancer(read[LoadBalancer](KindLoadBalancer, id))
}

func (machine) LoadBalancerStates() (map[string]int, error) {
	var list PolicyLists
	err := listV1("/policylists", &list)
	return list.States(), err
}

func (machine) CreateLoadBalancer(l *LoadBalancer) (*LoadBalancer, error) {
	made, err := convert[hcn.HostComputeLoadBalancer](l).Create()
	if err != nil {
		return nil, fault("HcnCreateLoadBalancer", err)
	}
	return canonicalLoadBalancer(convert[LoadBalancer](made), nil)
}

func (machine) ModifyLoadBalancer(id string, l *LoadBalancer) (*LoadBalancer, error) {
	now, err := convert[hcn.HostComputeLoadBalancer](l).Update(id)
	if err != nil {
		return nil, fault("HcnModifyLoadBalancer", err)
	}
	return canonicalLoadBalancer(convert[LoadBalancer](now), nil)
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

func canonicalEndpoint(e *Endpoint, err error) (*Endpoint, error) {
	if err == nil {
		e.ID, e.HostComputeNetwork = CanonicalID(e.ID), CanonicalID(e.HostComputeNetwork)
	}
	return e, err
}

func canonicalLoadBalancer(l *LoadBalancer, err error) (*LoadBalancer, error) {
	if err != nil {
		return nil, err
	}
	l.ID = CanonicalID(l.ID)
	for i, id := range l.HostComputeEndpoints {
		l.HostComputeEndpoints[i] = CanonicalID(id)
	}
	return l, nil
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
