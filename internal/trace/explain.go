package trace

import (
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Cluster holds the state and settings that explain a packet.
type Cluster struct {
	// Tracker has computed Model, and has not changed since.
	Tracker *k8s.Tracker
	Model   *k8s.Model
	// MasqueradeAll and LocalhostNodePorts are the settings of that name.
	MasqueradeAll, LocalhostNodePorts bool
	// Uplink is the name of the port that leads out of the node, if it is known.
	Uplink string
	// NodeBeside are the families of which the bridge serves pods although the node's address is not on it:
	// traffic that crosses the bridge cannot be masqueraded as the node, because replies would not return
	// through the bridge.
	NodeBeside []k8s.Family
	// Permissive is set if the data plane can neither refuse nor drop packets: HNS, as with kube-proxy on
	// Windows.
	Permissive bool
	// Unheard are the Service ports that nkp cannot listen for at [::1], and why.
	Unheard map[k8s.PortName]string
	// HostUnserved is why no data plane serves traffic from the node's processes, OwnUnserved why none serves
	// their traffic to addresses of the node itself; "": one does.
	HostUnserved, OwnUnserved string
}

// explanation is a Result under construction.
type explanation struct {
	Result
	Cluster
	q      Question
	family k8s.Family
	router k8s.Router
}

// Explain returns what happens to the first packet of a connection at this node. It reads the tracker: the
// caller must ensure that no other goroutine uses it meanwhile.
func Explain(c Cluster, q Question) *Result {
	e := &explanation{Cluster: c, q: q, family: k8s.FamilyOf(q.To.Addr()), router: k8s.Router{
		Detector:      c.Model.Detector,
		NodeIPs:       c.Model.Node.IPs,
		MasqueradeAll: c.MasqueradeAll,
		Loopback:      true, // see toNode
	}}
	e.Result = Result{
		Verdict:    Untouched,
		Endpoints:  []string{},
		Masquerade: Never,
		Steps:      []string{},
		Packet:     Packet{q.source(), q.To.String(), q.Protocol},
	}

	e.sourceOf()
	port, f := e.find()
	if f != nil {
		e.step("to %s/%s: %s", q.To, q.Protocol, e.frontendText(port, f))
	}

	if why := e.bypassReason(); why != "" {
		e.Unserved = true
		e.step("left alone: %s", why)
		return &e.Result
	}

	if f == nil {
		if !e.relayed() {
			e.explainNoFrontend()
		}
		return &e.Result
	}

	e.Port, e.Service, e.Frontend = port.Name, port.Name.String(), f.Type
	e.rivals(port)
	e.Route = e.router.Routes(port, f)[e.Source]
	e.step("%s", e.Route.Why)
	if e.Userspace = f.Address == k8s.Loopback6; !e.Userspace || e.listening(port) {
		e.candidates(port, f)
	}
	return &e.Result
}

// listening reports whether nkp accepts connections to a NodePort at [::1], and adds a step about that.
func (e *explanation) listening(port *k8s.ServicePort) bool {
	if e.Route.Empty != "" {
		e.step("left alone: without an endpoint nkp does not listen there, and the kernel refuses the "+
			"connection unless another process listens: %s",
			WhyEmpty(e.Tracker, port.Name, e.Tracker.EndpointStates(port.Name)))
		return false
	}
	if e.Result.Unheard = e.Cluster.Unheard[port.Name]; e.Result.Unheard != "" {
		e.step("left alone: %s", e.Result.Unheard)
		return false
	}
	e.step("nkp itself accepts the connection, and copies it to one of its own to the endpoint")
	return true
}

// bypassReason returns why nkp does not see the node's own packet; "": it does.
func (e *explanation) bypassReason() string {
	to := e.q.To.Addr()
	switch {
	case e.Source != k8s.ThisNode || e.q.In != "":
		return ""
	case e.HostUnserved != "":
		return "no data plane serves traffic from this node's own processes: " + e.HostUnserved
	case e.OwnUnserved != "" && (to.IsLoopback() || slices.Contains(e.Model.Node.Local, to)):
		return "no data plane serves what this node sends to itself: " + e.OwnUnserved
	}
	return ""
}

func (e *explanation) step(format string, args ...any) {
	e.Steps = append(e.Steps, fmt.Sprintf(format, args...))
}
