//go:build linux

package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nkp-proxy/nkp/test/testbed"
)

const (
	nodeName   = "node-1"
	remoteNode = "node-2"
	apiPort    = 6443
)

// API is a kube-apiserver with etcd, in a network namespace of its own. Its methods may be called from any goroutine,
// except Link and NextMove.
type API struct {
	Client kubernetes.Interface // no limit slows it down

	bed   *testbed.Bed // only its node is used
	dir   string
	proc  *Process
	links int
	moves int // by NextMove
}

// StartAPI starts the API server and creates the Node objects. Close ends it.
func StartAPI(ctx context.Context, programs Programs, dir string) (*API, error) {
	bed, err := testbed.New(ctx, testbed.Options{Plane: testbed.Linux})
	if err != nil {
		return nil, err
	}
	a := &API{bed: bed, dir: dir}
	if a.proc, err = startProcess(bed.Node, "kubeserver", dir, exec.Command(programs.KubeServer, filepath.Join(dir, "kube"))); err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(a.adminConfig()); err == nil {
			break
		}
		if err := a.proc.Ended(); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the API server does not get ready: %s", a.proc.Log())
		}
	}
	if a.Client, err = a.newClient(); err != nil {
		return nil, err
	}
	for name, ip := range map[string]string{nodeName: testbed.NodeIP4.String(), remoteNode: testbed.RemoteIP4.String()} {
		n, err := a.Client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: ip}}
		if _, err := a.Client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Close ends the API server. It does not wait until it is drained.
func (a *API) Close() error { return a.bed.Close() }

// PID is the API server's.
func (a *API) PID() int { return a.proc.PID() }

func (a *API) adminConfig() string { return filepath.Join(a.dir, "kube", "kubeconfig") }

func (a *API) newClient() (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", a.adminConfig())
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.WarningHandler = rest.NoWarnings{}
	cfg.Dial = func(ctx context.Context, _, addr string) (net.Conn, error) {
		return a.bed.Node.DialTCP(ctx, addr, testbed.DialOptions{})
	}
	return kubernetes.NewForConfig(cfg)
}

// Link joins a bed's node to the API server by a link of its own, and writes a kubeconfig for proxies there to dir.
func (a *API) Link(ctx context.Context, b *testbed.Bed, dir string) (kubeconfig string, err error) {
	a.links++
	dev := fmt.Sprintf("bed%d", a.links)
	first := net.IPv4(192, 0, 2, 0).To4() // reserved for documentation (RFC 5737)
	first[3] = byte(a.links * 4)
	server, client := fmt.Sprintf("192.0.2.%d", first[3]+1), fmt.Sprintf("192.0.2.%d", first[3]+2)
	for _, c := range []struct {
		h    *testbed.Host
		argv string
	}{
		{b.Node, "link add api type veth peer name " + dev + " netns " + a.bed.Node.Netns()},
		{b.Node, "addr add " + client + "/30 dev api"},
		{b.Node, "link set api up"},
		{a.bed.Node, "addr add " + server + "/30 dev " + dev},
		{a.bed.Node, "link set " + dev + " up"},
	} {
		if out, err := c.h.Exec(ctx, append([]string{"ip"}, strings.Fields(c.argv)...)...); err != nil {
			return "", fmt.Errorf("link to the API server: %w: %s", err, out)
		}
	}
	if a.links == 60 {
		a.links = -1 // the oldest beds are gone
	}
	return a.writeKubeconfig(dir, server)
}

func (a *API) writeKubeconfig(dir, server string) (string, error) {
	admin, err := clientcmd.LoadFromFile(a.adminConfig())
	if err != nil {
		return "", err
	}
	cfg := api.NewConfig()
	for name, c := range admin.Clusters {
		c.Server, c.TLSServerName = fmt.Sprintf("https://%s:%d", server, apiPort), "kubernetes"
		cfg.Clusters[name] = c
	}
	cfg.AuthInfos, cfg.Contexts, cfg.CurrentContext = admin.AuthInfos, admin.Contexts, admin.CurrentContext
	path := filepath.Join(dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*cfg, path)
}

// Load that the API server has had so far, of what service proxies ask for.
type Load struct {
	Requests    float64 // lists and watches begun, of Services, EndpointSlices, Nodes and ServiceCIDRs
	WatchEvents float64
	WatchBytes  float64 // of these, serialized
	Watches     float64 // open, of these
	CPU         time.Duration
	Resident    float64 // units of a million bytes
}

// Sub returns what came since an earlier Load, but for Resident, which stays.
func (l Load) Sub(before Load) Load {
	l.Requests -= before.Requests
	l.Watches -= before.Watches
	l.WatchEvents -= before.WatchEvents
	l.WatchBytes -= before.WatchBytes
	l.CPU -= before.CPU
	return l
}

var proxied = map[string]bool{"services": true, "endpointslices": true, "nodes": true, "servicecidrs": true}

// Load reads the API server's metrics.
func (a *API) Load(ctx context.Context) (l Load, err error) {
	text, err := a.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return l, err
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		return l, err
	}
	for name, family := range families {
		for _, m := range family.Metric {
			label := map[string]string{}
			for _, p := range m.Label {
				label[p.GetName()] = p.GetValue()
			}
			of := proxied[label["resource"]]
			switch name {
			case "apiserver_request_total":
				if v := m.GetCounter().GetValue(); of && (label["verb"] == "LIST" || label["verb"] == "WATCH") {
					l.Requests += v
				}
			case "apiserver_longrunning_requests":
				if of && label["verb"] == "WATCH" {
					l.Watches += m.GetGauge().GetValue()
				}
			case "apiserver_watch_events_total":
				if of {
					l.WatchEvents += m.GetCounter().GetValue()
				}
			case "apiserver_watch_events_sizes":
				if of {
					l.WatchBytes += m.GetHistogram().GetSampleSum()
				}
			}
		}
	}
	l.Requests += l.Watches // those that have ended are counted above
	if l.CPU, err = CPU(a.PID()); err != nil {
		return l, err
	}
	l.Resident, _, err = Resident(a.PID())
	return l, err
}
