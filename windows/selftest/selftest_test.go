package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/hnsfake"
	"github.com/nkp-proxy/nkp/windows/hns"
)

var newest = hns.Version{Major: 15, Minor: 5}

// quietHost is a machine on which a self-test may run.
func quietHost() *Host {
	return &Host{Windows: "10.0.20348", Processes: func() ([]string, error) { return []string{"svchost.exe"}, nil },
		Addresses: func() ([]netip.Prefix, error) { return []netip.Prefix{netip.MustParsePrefix("10.0.0.4/24")}, nil },
		Listens:   func(int) error { return nil }}
}

func options(networkType string) Options {
	o := Options{NKP: "test", NetworkType: networkType, Host: quietHost()}
	if networkTypes[networkType] {
		o.Adapter = "Ethernet 2"
	}
	return o
}

// leftIn returns the number of objects in HNS.
func leftIn(t *testing.T, s *hnsfake.Server) (n int) {
	t.Helper()
	for _, k := range []hns.Kind{hns.KindNetwork, hns.KindEndpoint, hns.KindLoadBalancer} {
		ids, err := s.Raw().IDs(k)
		must(t, err)
		n += len(ids)
	}
	return n
}

func find(t *testing.T, r *Report, shape string) *Object {
	t.Helper()
	for i := range r.Objects {
		if strings.Contains(r.Objects[i].Shape, shape) {
			return &r.Objects[i]
		}
	}
	t.Fatalf("no %q among %+v", shape, r.Objects)
	return nil
}

// Every type of network has each kind of object that nkp creates there, and nothing stays.
func TestRun(t *testing.T) {
	for networkType := range networkTypes {
		for _, v := range []hns.Version{newest, {Major: 13, Minor: 2}, {Major: 9, Minor: 2}} {
			s := hnsfake.New(v)
			s.AddNetwork("nat", "NAT", nil)
			before := leftIn(t, s)
			r, err := Run(t.Context(), s.Raw(), options(networkType))
			must(t, err)
			var text bytes.Buffer
			must(t, r.Text(&text))
			if !r.Passed() || leftIn(t, s) != before || s.OpenHandles() != 0 || s.Dangling() != 0 {
				t.Errorf("%s, HNS %s: %d objects left, %d handles open\n%s", networkType, v, leftIn(t, s), s.OpenHandles(), &text)
			}
			for _, o := range r.Objects {
				if len(o.Differences) > 0 || o.Altered {
					t.Errorf("%s, HNS %s: the fake stores what it is asked for: %+v", networkType, v, o)
				}
			}
			for _, shape := range []string{"network", "a pod of this node", "backend 198.18.1.20", "cluster-ip (ClusterIP)", "cluster-ip-udp", "affinity", "external-ip (ExternalIP)", "external-ip-local",
				"load-balancer (LoadBalancer)", "load-balancer-preserve", "(HealthCheck)", "node-port (NodePort) *:47998/TCP/IPv4", "sctp", "cluster-ip-dsr"} {
				find(t, r, shape)
			}
			if networkType == hns.NetworkOverlay {
				if o := find(t, r, "service VIP"); !strings.Contains(string(o.Asked), `"ProviderAddress":"198.19.255.1"`) {
					t.Errorf("%+v", o)
				}
				find(t, r, "source VIP 198.18.0.2")
			}
			if v == newest {
				find(t, r, "modified in place")
				if networkType == hns.NetworkL2Bridge {
					t.Logf("\n%s", &text)
				}
			}
		}
	}
}

// What HNS stores differently is listed by field, with what it asked and stored, and whether it matters to nkp. Refusals and States that are
// not healthy are in the report too.
func TestFindings(t *testing.T) {
	s := hnsfake.New(newest)
	s.SetEcho(func(kind string, o hnsfake.Object) {
		switch {
		case kind == "LoadBalancer" && len(o) > 1:
			o["Flags"] = 64
			o["PortMappings"].([]any)[0].(map[string]any)["InternalPort"] = 8081
			o["Health"] = "ok"
		case kind == "Endpoint" && len(o) > 1:
			o["MacAddress"] = strings.ToUpper(o["MacAddress"].(string))
		}
	})
	s.SetState("", 4)
	s.Inject(hnsfake.Fault{Func: "HcnCreateLoadBalancer", Times: -1, Match: func(a []string) bool { return strings.Contains(a[0], `"Protocol":132`) },
		Code: hns.CodeInvalidPolicy, Text: "The policy is invalid."})
	r, err := Run(t.Context(), s.Raw(), options("Internal"))
	if err != nil || r.Passed() || leftIn(t, s) != 0 {
		t.Fatalf("%v, %+v", err, r)
	}
	o := find(t, r, "cluster-ip (ClusterIP)")
	if !o.Altered || o.State != 4 || len(o.Differences) != 1 || o.Differences[0] != (Difference{"PortMappings[0].InternalPort", "8080", "8081"}) || strings.Join(o.Added, " ") != "Flags Health ID" {
		t.Errorf("%+v", o)
	}
	if o := find(t, r, "backend"); o.Altered || len(o.Differences) != 1 || o.Differences[0].Field != "MacAddress" {
		t.Errorf("%+v", o)
	}
	if o := find(t, r, "sctp"); !strings.Contains(o.Error, "HCN_E_INVALID_POLICY") || o.Stored != nil {
		t.Errorf("%+v", o)
	}
	var text bytes.Buffer
	must(t, r.Text(&text))
	for _, want := range []string{"REFUSED: HcnCreateLoadBalancer failed: The policy is invalid", "stored differently: PortMappings[0].InternalPort 8081, not 8080", "State 4, not 2", "as requested, but for MacAddress",
		"1 refused", "attach the output"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &text)
		}
	}
}

// A self-test that is killed at any call leaves objects; the next one deletes them first. So does one that fails or is interrupted.
func TestKilledAnywhere(t *testing.T) {
	s := hnsfake.New(newest)
	if _, err := Run(t.Context(), s.Raw(), options(hns.NetworkOverlay)); err != nil {
		t.Fatal(err)
	}
	total := len(s.Calls())
	left := 0
	for n := 1; n < total; n += 3 {
		s := hnsfake.New(newest)
		func() {
			defer func() {
				if r := recover(); r != nil && r != "killed" {
					panic(r)
				}
			}()
			raw := &killer{Raw: s.Raw(), left: n}
			_, _ = Run(t.Context(), raw, options(hns.NetworkOverlay))
		}()
		if leftIn(t, s) > 0 {
			left++
		}
		r, err := Run(t.Context(), s.Raw(), options(hns.NetworkOverlay))
		if err != nil || !r.Passed() || leftIn(t, s) != 0 {
			t.Fatalf("after %d calls: %v, %d objects left, %+v", n, err, leftIn(t, s), r)
		}
	}
	if left < 10 {
		t.Errorf("only %d of the killed runs left anything", left)
	}
	t.Logf("%d killed runs left objects", left)

	ctx, cancel := context.WithCancel(t.Context())
	s = hnsfake.New(newest)
	s.Inject(hnsfake.Fault{Func: "HcnCreateEndpoint", Times: 1, Do: cancel})
	r, err := Run(ctx, s.Raw(), options("Internal"))
	if err != nil || leftIn(t, s) != 0 || len(r.Objects) != 2 || !strings.Contains(strings.Join(r.Notes, " "), "interrupted") {
		t.Errorf("interrupted: %v, %+v", err, r)
	}

	s = hnsfake.New(newest)
	s.Inject(hnsfake.Fault{Func: "HcnDeleteEndpoint", Times: 2, Code: hns.CodeFail, Text: "busy"})
	r, err = Run(t.Context(), s.Raw(), options("Internal"))
	if err != nil || r.Passed() || len(r.Left) != 1 || !strings.Contains(r.Left[0], "Endpoint") {
		t.Errorf("an endpoint that stays: %v, %+v", err, r)
	}
}

// killer dies at the nth call, so that neither Run nor what it deferred goes on.
type killer struct {
	hns.Raw
	left int
}

func (k *killer) call() {
	if k.left--; k.left <= 0 {
		panic("killed")
	}
}

func (k *killer) IDs(kind hns.Kind) ([]string, error) {
	k.call()
	return k.Raw.IDs(kind)
}

func (k *killer) Create(kind hns.Kind, network string, body []byte) (json.RawMessage, error) {
	defer k.call() // HNS has made the object
	return k.Raw.Create(kind, network, body)
}

func (k *killer) Delete(kind hns.Kind, id string) error {
	k.call()
	return k.Raw.Delete(kind, id)
}

// Where it could disturb anything, a self-test changes nothing and says why.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*hnsfake.Server, *Options)
		want   string
	}{
		{"unknown type", func(_ *hnsfake.Server, o *Options) { o.NetworkType = "Bridge" }, "none of [Internal L2Bridge NAT Overlay]"},
		{"no adapter", func(_ *hnsfake.Server, o *Options) { o.NetworkType = hns.NetworkOverlay }, "needs --adapter"},
		{"needless adapter", func(_ *hnsfake.Server, o *Options) { o.Adapter = "Ethernet" }, "uses no --adapter"},
		{"kube-proxy", runs("kube-proxy.exe"), "kube-proxy.exe runs: this host is a node of a cluster"},
		{"kubelet", runs("Kubelet.exe"), "Kubelet.exe runs"},
		{"nkp", runs("nkp.exe"), "nkp.exe runs"},
		{"nkp as downloaded", runs("nkp-windows-amd64.exe"), "nkp-windows-amd64.exe runs"},
		{"processes unknown", func(_ *hnsfake.Server, o *Options) {
			o.Host.Processes = func() ([]string, error) { return nil, errors.New("denied") }
		}, "cannot list the processes"},
		{"same name", func(s *hnsfake.Server, _ *Options) { s.AddNetwork(networkName, "NAT", nil) }, "that no self-test made"},
		{"pods", func(s *hnsfake.Server, _ *Options) { s.AddNetwork("Calico", hns.NetworkOverlay, nil) }, "the network Calico of type Overlay"},
		{"remote subnet", func(s *hnsfake.Server, _ *Options) {
			s.AddNetwork("x", "NAT", map[string]string{"198.18.0.0/16": "10.0.0.1"})
		}, "the HNS network x has the subnet 198.18.0.0/16"},
		{"load balancer", func(s *hnsfake.Server, _ *Options) {
			s.AddLoadBalancer(hnsfake.Object{"FrontendVIPs": []any{"10.96.0.1"}})
		}, "HNS has 1 load balancers"},
		{"adapter's address", func(_ *hnsfake.Server, o *Options) {
			o.Host.Addresses = func() ([]netip.Prefix, error) { return []netip.Prefix{netip.MustParsePrefix("198.19.3.4/30")}, nil }
		}, "a network adapter has the address 198.19.3.4/30"},
		{"addresses unknown", func(_ *hnsfake.Server, o *Options) {
			o.Host.Addresses = func() ([]netip.Prefix, error) { return nil, errors.New("denied") }
		}, "cannot list the addresses"},
		{"port", func(_ *hnsfake.Server, o *Options) { o.Host.Listens = func(int) error { return errors.New("in use") } }, "TCP port 47998 is in use"},
		{"old", func(s *hnsfake.Server, _ *Options) { s.SetVersion(hns.Version{Major: 9, Minor: 1}) }, "too old"},
		{"no rights", func(s *hnsfake.Server, _ *Options) {
			s.Inject(hnsfake.Fault{Func: "HcnEnumerateNetworks", Times: -1, Code: 0x80070005, Text: "Access is denied."})
		}, "elevated prompt"},
	} {
		s := hnsfake.New(newest)
		o := options("Internal")
		c.change(s, &o)
		before := existing(s)
		s.Calls()
		r, err := Run(t.Context(), s.Raw(), o)
		if err == nil || !strings.Contains(err.Error(), c.want) || r != nil {
			t.Errorf("%s: %v, %+v", c.name, err, r)
		}
		for _, call := range s.Calls() {
			if strings.HasPrefix(call.Func, "HcnCreate") || strings.HasPrefix(call.Func, "HcnDelete") || strings.HasPrefix(call.Func, "HcnModify") {
				t.Errorf("%s: %s", c.name, call.Func)
			}
		}
		if existing(s) != before {
			t.Errorf("%s: HNS has changed", c.name)
		}
	}
}

// existing returns the number of load balancers and endpoints without a call.
func existing(s *hnsfake.Server) int { return len(s.LoadBalancers()) + len(s.Endpoints()) }

func runs(name string) func(*hnsfake.Server, *Options) {
	return func(_ *hnsfake.Server, o *Options) {
		o.Host.Processes = func() ([]string, error) { return []string{"svchost.exe", name}, nil }
	}
}

// must fails the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
