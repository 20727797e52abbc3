package command

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/windows"
)

// statusText writes a status for people: a line for each fact, what is wrong last and in capitals.
type statusText struct {
	w        *tabwriter.Writer
	now      time.Time
	problems []string
}

func writeStatus(out io.Writer, s *api.Status, now time.Time) error {
	t := &statusText{w: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), now: now}
	t.status(s)
	return t.w.Flush()
}

// statusProblems returns the lines of a status that say what is wrong.
func statusProblems(s *api.Status, now time.Time) []string {
	t := &statusText{w: tabwriter.NewWriter(io.Discard, 0, 0, 0, ' ', 0), now: now}
	t.status(s)
	return t.problems
}

func (t *statusText) status(s *api.Status) {
	t.line("nkp", "%s on node %s, started %s", s.Version, s.Node, t.ago(s.Started))

	chosen := ""
	if s.Status != nil && !s.Bridge.Exists {
		chosen = " (when nkp started)"
	}
	t.line("mode", "%s: %s%s", s.Mode, s.Reason, chosen)

	for _, l := range s.Loops {
		t.problem("BUSY", "%s", l)
	}

	t.source(&s.Source)
	t.start(&s.Start)
	t.line("services", "%s, %s",
		dataplane.Count(s.ServicePorts, "Service port"), dataplane.Count(s.Endpoints, "endpoint"))
	if len(s.Skipped) > 0 {
		t.line("skipped", "%s left to another program of the node (--skip-services): %s",
			dataplane.Count(len(s.Skipped), "Service"), strings.Join(s.Skipped, ", "))
	}
	if c := s.Closing; c != nil {
		t.line("closing", "%s with TCP connections to removed endpoints closed, %s draining",
			dataplane.Count(c.Services, "Service"), dataplane.Count(c.Draining, "removed endpoint"))
	}
	t.pending(s)

	if s.Status != nil {
		t.bridge(s.Status)
	}
	for _, d := range []*fallback.Status{s.IPTables, s.NFTables} {
		if d != nil {
			t.fallback(d)
		}
	}
	if s.HNS != nil {
		t.hns(s.HNS)
	}
	if l := s.Localhost; l != nil {
		t.line("localhost",
			"listens for %s at [::1], %d not served there; %s (at most %d, %d of a Service port)",
			dataplane.Count(l.Listening, "TCP NodePort"), l.Unserved,
			dataplane.Count(l.Open, "connection"), l.Connections, l.PerPort)
	}
	for _, plane := range slices.Sorted(maps.Keys(s.Pings)) {
		n := s.Pings[plane]
		t.line("pings", "%s: %s of Services' addresses answered, %d not, beyond the limit (--answer-ping)",
			plane, dataplane.Count(int(n.Answered), "ping"), n.Limited)
	}
	for i := range s.Canary {
		t.canary(&s.Canary[i])
	}

	for _, e := range s.Source.Errors {
		t.problem("ERROR", "%s", e)
	}
	for _, w := range s.Warnings {
		t.problem("WARNING", "%s", w)
	}
}

// canary writes what packets of nkp's own have shown of the data path. A fault is among the warnings.
func (t *statusText) canary(v *dataplane.CanaryVerdict) {
	text := "not known yet"
	switch {
	case v.Fault != "":
		text = "does NOT let packets of nkp's own pass"
	case v.PassedAt != nil:
		text = fmt.Sprintf("a packet of nkp's own passed %s: %s",
			t.ago(*v.PassedAt), strings.Join(v.Passed, ", "))
	}
	if v.Unknown != "" {
		text += "; the latest shows nothing: " + v.Unknown
	}
	t.line("data path", "%s, %s: %s", v.Plane, v.Family, text)
}

// line writes one line. It joins the lines of a text that has several, such as an error.
func (t *statusText) line(key, format string, args ...any) {
	fmt.Fprintf(t.w, "%s\t%s\n", key, oneLine(fmt.Sprintf(format, args...)))
}

// problem writes a line about what is wrong; key is in capitals.
func (t *statusText) problem(key, format string, args ...any) {
	t.line(key, format, args...)
	t.problems = append(t.problems, key+": "+oneLine(fmt.Sprintf(format, args...)))
}

// since returns a time, and how long ago it was.
func (t *statusText) since(at time.Time) string {
	return fmt.Sprintf("%s (%s)", at.UTC().Format(time.RFC3339), t.ago(at))
}

// lastError writes the last error, unless text is "". at is when it came; zero: unknown.
func (t *statusText) lastError(text string, at time.Time) {
	switch {
	case text == "":
	case at.IsZero():
		t.problem("LAST ERROR", "%s", text)
	default:
		t.problem("LAST ERROR", "%s: %s", t.since(at), text)
	}
}

func (t *statusText) ago(at time.Time) string {
	return t.now.Sub(at).Round(time.Second).String() + " ago"
}

func (t *statusText) source(s *api.SourceStatus) {
	state := "synced"
	switch {
	case !s.Synced:
		state = "NOT synced yet"
	case s.Answers != nil && !*s.Answers:
		state = "does NOT answer"
		if s.AwaySince != nil {
			state += " since " + t.since(*s.AwaySince)
		}
		state += "; the last state stays in force"
	case len(s.Errors) > 0:
		state = fmt.Sprintf("%s; the last good state of those objects is in force",
			dataplane.Count(len(s.Errors), "error"))
	}
	t.line("source", "%s: %s", s.Kind, state)
}

// start prints how long the start and its phases took. During the start it prints nothing: the other lines
// show its progress.
func (t *statusText) start(s *api.StartStatus) {
	if s.InStep == 0 {
		return
	}
	parts := []string{fmt.Sprintf("data plane detected at %.2f s", s.Chosen/1000)}
	for _, l := range s.Lists {
		parts = append(parts, fmt.Sprintf("%s list at %.2f s (%d, %.1f MB)",
			l.Kind, l.Milli/1000, l.Objects, float64(l.Bytes)/1e6))
	}
	t.line("start", "took %.2f s: %s, lists complete at %.2f s, model %.2f s, programming %.2f s",
		s.InStep/1000, strings.Join(parts, ", "), s.Synced/1000,
		(s.Model-s.Synced)/1000, (s.InStep-s.Model)/1000)
}

// pending prints the changes that are not in force yet. Without a change of an object, the switch, the kernel
// or the node has changed.
func (t *statusText) pending(s *api.Status) {
	p := s.Pending
	since := p.For.Round(time.Millisecond)
	switch {
	case p.Services+p.EndpointSlices > 0:
		t.line("pending", "changes of %s and %s, the oldest for %v",
			dataplane.Count(p.Services, "Service"), dataplane.Count(p.EndpointSlices, "EndpointSlice"), since)
	case p.For <= 0:
	case s.Status != nil && !s.Bridge.Exists:
		t.line("pending", "everything, for %v: there is no bridge %s", since, s.Bridge.Name)
	case s.Status != nil && !s.Channel.Connected:
		t.line("pending",
			"everything, for %v: the switch is not connected, and may have lost what it held", since)
	default:
		t.line("pending", "what the node and its settings call for, for %v; no Service has changed", since)
	}
}

func (t *statusText) bridge(s *bridge.Status) {
	if !s.Bridge.Exists {
		t.line("bridge", "%s does NOT exist; Open vSwitch %s", s.Bridge.Name, ovsVersion(s))
	} else {
		t.bridgeFacts(s)
	}
	if d := &s.Database; d.AwaySince != nil {
		t.problem("DATABASE", "%s does NOT answer since %s: %s; the last known ports and settings "+
			"stay in use, and ovs-vswitchd may wait for it, too: look at ovsdb-server first",
			d.Endpoint, t.since(*d.AwaySince), d.LastError)
	}
	t.channel(s)
	for _, r := range s.Refused {
		t.problem("REFUSED",
			"%s: %s (%d times, next try %s)", r.Service, r.Error, r.Times, r.RetryAt.Format(time.TimeOnly))
	}
	t.lastError(s.LastError, s.LastErrorAt)
}

// ovsVersion returns the switch's release, which nothing but ovs-ctl writes into the database.
func ovsVersion(s *bridge.Status) string {
	return cmp.Or(s.Bridge.OVSVersion, "of unknown version")
}

func (t *statusText) bridgeFacts(s *bridge.Status) {
	delivery := "through the gateway"
	if s.Bridge.LocalDelivery {
		delivery = "straight"
	}
	t.line("bridge", "%s, datapath %s, Open vSwitch %s, uplink port %d, %s (delivery %s)",
		s.Bridge.Name, s.Bridge.Datapath, ovsVersion(s), s.Bridge.Uplink,
		dataplane.Count(s.Bridge.Pods, "pod address"), delivery)
	if s.Decide {
		t.line("others",
			"flows of others in table 0 decide where direct packets go, and those to endpoints of Services")
	}
	for _, lack := range s.Bridge.Lacks {
		t.line("lacks", "%s", lack)
	}
	if s.HostTraffic != "" {
		t.line("host traffic", "%s", s.HostTraffic)
	}
}

// channel prints the state of the OpenFlow channel and whether the switch is in step.
func (t *statusText) channel(s *bridge.Status) {
	switch {
	case s.Channel.Silent:
		t.line("channel", "connected to %s, but %s", s.Channel.Target, s.Why)
	case s.Channel.Connected && s.Channel.Since == "": // the data plane is busy
		t.line("channel", "connected to %s", s.Channel.Target)
	case s.Channel.Connected:
		t.line("channel", "connected to %s since %s", s.Channel.Target, s.Channel.Since)
	default:
		t.line("channel", "NOT connected to %s: %s", s.Channel.Target, s.Channel.LastError)
	}

	step := "the switch holds what it should"
	switch {
	case s.InStep:
	case s.FailOpen != "":
		step = "NOT in force: ovs-vswitchd forwards past nkp's flows, see WARNING"
	case s.Channel.Silent:
		step = "NOT known: the switch does not answer"
	case !s.Channel.Connected && s.Bridge.Exists && s.Compared != nil:
		step = "NOT known: the switch is not connected"
	default:
		step = "the switch does NOT hold what it should yet"
	}

	if s.LastSync != nil {
		step += ", last change " + t.ago(*s.LastSync)
	}
	if s.Compared != nil {
		step += ", compared " + t.ago(*s.Compared)
	}
	t.line("in step", "%s: %s, %s; repaired %s", step, dataplane.Count(s.Flows, "flow"),
		dataplane.Count(s.Groups, "group"), dataplane.Count(s.Repairs, "time"))

	if r := s.LastRepair; r != nil {
		t.line("repaired", "%s: %s", t.since(r.At), r.What)
	}

	if p := &s.Programming; p.Changes == 0 {
		t.line("programming", "no change yet")
	} else {
		t.line("programming", "%s, p50 %.2f ms, p99 %.2f ms; in the channel p50 %.2f ms, p99 %.2f ms",
			dataplane.Count(p.Changes, "change"),
			p.P50Milli, p.P99Milli, p.ChannelP50Milli, p.ChannelP99Milli)
	}

	if n := s.Affinity.Clients; n > 0 {
		t.line("affinity", "%s remembered, at most %d of a Service port and %d in all",
			dataplane.Count(n, "client"), s.Affinity.Limit, s.Affinity.NodeLimit)
	}
	if s.Conntrack != nil {
		t.line("conntrack", "%s", s.Conntrack)
	}
	if s.Megaflows != nil {
		t.line("megaflows", "%s", s.Megaflows)
	}

	t.line("refused packets", "%d answered, %d dropped, %d failed",
		s.Rejects.Answered, s.Rejects.Dropped, s.Rejects.Failed)
}

// fallback writes the state of iptables or nftables.
func (t *statusText) fallback(s *fallback.Status) {
	nftables := s.Backend == string(mode.NFTables)
	if nftables {
		t.line("nftables", "tables ip nkp and ip6 nkp, serves %s", scopes[s.Scope])
	} else {
		t.line("iptables", "%s (%s), version %s, serves %s",
			cmp.Or(s.Backend, "not chosen yet"), s.Reason, s.Version, scopes[s.Scope])
	}

	for i := range s.Families {
		f := &s.Families[i]

		step := "all is programmed, but not read back since"
		switch {
		case !f.InStep && f.Pending == 1:
			step = "the rules are NOT as they should be yet (1 Service port waits)"
		case !f.InStep:
			step = fmt.Sprintf("the rules are NOT as they should be yet (%d Service ports wait)", f.Pending)
		case !f.Compared.IsZero():
			step = "all is programmed; the rules were as they should be when read back at " +
				t.since(f.Compared)
		}

		if !f.LastSync.IsZero() {
			step += ", last change " + t.ago(f.LastSync)
		}

		size := dataplane.Count(f.Chains, "chain")
		if nftables {
			size = dataplane.Count(f.Elements, "element")
		}
		t.line(f.Family, "%s: %s, %s; repaired %s", step,
			dataplane.Count(f.Services, "Service port"), size, dataplane.Count(f.Repairs, "time"))

		if r := f.LastRepair; r != nil {
			t.line("repaired", "%s: %s", t.since(r.At), r.What)
		}

		if n := f.Flowtable; n != nil {
			t.line("flowtable", "%s", dataplane.Count(n.Devices, "device"))
			if n.Error != "" {
				t.problem("FLOWTABLE", "%s left out; their connections take the usual path: %s",
					dataplane.Count(n.LeftOut, "device"), n.Error)
			}
		}

		t.programming(&f.Programming)
		for _, name := range slices.Sorted(maps.Keys(f.Refused)) {
			t.problem("REFUSED", "%s: %s", name, f.Refused[name])
		}

		if f.LastForgetError != "" {
			t.problem("STALE CONNECTIONS",
				"UDP to endpoints that are gone, TCP that is older than its Service; trying again: %s",
				f.LastForgetError)
		}
		t.lastError(f.LastError, f.LastErrorAt)
	}
}

func (t *statusText) hns(s *windows.Status) {
	t.line("HNS", "%s, network %s (%s), source VIP %s",
		cmp.Or(s.HNSVersion, "has not answered yet"), s.Network, s.NetworkType, cmp.Or(s.SourceVIP, "none"))
	if s.HNSVersion != "" {
		t.line("HNS features", "%s", strings.Trim(fmt.Sprintf("%+v", s.Features), "{}"))
	}

	step := "yes"
	if !s.InStep {
		step = "NO: " + s.Why
	}
	if !s.Synced.IsZero() {
		step += fmt.Sprintf("; %s, %s, last sync %s took %v",
			dataplane.Count(s.Objects.LoadBalancers, "load balancer"),
			dataplane.Count(s.Objects.Endpoints, "endpoint"),
			t.ago(s.Synced), s.Took)
	}

	t.line("in step", "%s", step)
	t.programming(&s.Programming)

	for _, w := range s.Waiting {
		t.problem("WAITING", "%s", w)
	}
	for _, f := range s.Failures {
		t.problem("FAILED", "%s: %s", f.Object, f.Error)
	}
	for _, u := range s.Unsupported {
		t.problem("NOT SUPPORTED", "%s: %s", u.Service, u.Reason)
	}
	t.lastError(s.Error, time.Time{})
}

// scopes are the words for fallback.Status.Scope.
var scopes = map[string]string{
	"everything": "all traffic", "host": "traffic from the node and from outside",
	"own": "what the node sends to its own addresses",
}

func (t *statusText) programming(p *dataplane.Programming) {
	if p.Changes == 0 {
		t.line("programming", "no change yet")
		return
	}
	t.line("programming", "%s, p50 %.2f ms, p99 %.2f ms",
		dataplane.Count(p.Changes, "change"), p.P50Milli, p.P99Milli)
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }
