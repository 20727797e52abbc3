//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

const (
	frontend    = "frontend"
	redisMaster = "redis-master"
	redisSlave  = "redis-slave"

	leavingPod = "frontend-5798c4bfc7-v7889" // the pod that goes away
	masterIP   = "172.18.0.18"               // of redis-master's only pod

	outsideShare = 5 // one request from outside for so many from the pod
)

// story is the demo in progress.
type story struct {
	*screen
	*lab
	config config
	view   *k8s.View // the Services at the beginning
}

// show returns the story and takes everything away afterwards; with config.keep it waits for the end of ctx before that.
func show(ctx context.Context, c config, out *screen) (err error) {
	out.printf("%s\n", out.paint(bold, "nkp demo: the guestbook's Services on a private Open vSwitch; this machine's network is left alone"))
	s := &story{screen: out, lab: &lab{nkp: c.nkp}, config: c}
	defer func() {
		switch {
		case err == nil:
		case ctx.Err() != nil:
			err = errors.New("interrupted; nkp, pods and switch are gone")
		default:
			err = fmt.Errorf("step %d (%s) failed: %w%s", s.step, s.title, err, s.logTail())
		}
		if e := s.close(); e != nil {
			err = errors.Join(err, e)
		} else if err == nil {
			out.printf("\nnkp, pods and switch are gone, all cleaned up. The demo took %.1f s.\n", time.Since(out.start).Seconds())
		}
	}()
	for _, step := range []func(context.Context) error{
		s.setUp, s.services, s.requests, s.explain, s.podLeaves, s.agentDies, s.noEndpoints, s.lookFurther,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if c.keep {
		s.stay(ctx)
	}
	return nil
}

func (s *story) setUp(ctx context.Context) error {
	s.begin("A private switch, two nodes and their pods (network namespaces); nkp on this node")
	start := time.Now()
	if err := s.build(s.config.manifest); err != nil {
		return err
	}
	version, err := s.Appctl("version")
	if err != nil {
		return err
	}
	built := time.Since(start)
	words := strings.Fields(version) // ovs-vswitchd (Open vSwitch) 3.1.0
	s.say("this node   %-13s  %-15s with the bridge %s, Open vSwitch %s", nodeName, addressing.Node, s.Bridge, words[min(3, len(words)-1)])
	for _, local := range []bool{true, false} {
		if !local {
			s.say("other node  %-13s  %-15s behind a router", "haofan-test-2", addressing.Remote)
		}
		for _, p := range podPlans {
			if p.local == local {
				serves := map[int]string{httpPort: "HTTP on 80", redisPort: "TCP on 6379"}[p.port]
				s.say("            %-30s  %-13s %s", p.name, s.pods[p.name].IP4, cmp.Or(serves, "asks"))
			}
		}
	}
	s.good("built in %s: the switch, %d pods and a client outside the cluster (%s)", milli(built), len(podPlans), s.External.IP4)
	start = time.Now()
	if err := s.startAgent(); err != nil {
		return err
	}
	took, err := s.settle(ctx, start)
	if err != nil {
		return err
	}
	have, err := s.installed()
	if err != nil {
		return err
	}
	s.good("nkp started; \"nkp diff\" finds the switch in step after %s: %d flows, %d groups", milli(took), len(have.flows), len(have.groups))
	return nil
}

func (s *story) services(context.Context) error {
	s.begin("The Services, as nkp understands the manifest (nkp plan -o json)")
	var err error
	if s.view, err = s.plan(); err != nil {
		return err
	}
	s.table(serviceRows(s.view))
	return nil
}

// serviceRows is a table of Services with a line for each endpoint.
func serviceRows(v *k8s.View) [][]string {
	rows := [][]string{{"SERVICE", "TYPE", "CLUSTER-IP", "PORT", "ENDPOINTS"}}
	for _, sv := range v.Services {
		kind, ip, port := "ClusterIP", "", ""
		for _, f := range sv.Frontends {
			switch f.Type {
			case "ClusterIP":
				ip, port = f.Address, fmt.Sprint(f.Port)+port
			case "NodePort":
				kind, port = "NodePort", fmt.Sprintf("%s:%d", port, f.Port)
			}
		}
		local := map[string]bool{}
		for _, e := range sv.LocalEndpoints {
			local[e] = true
		}
		row := []string{sv.Namespace + "/" + sv.Name, kind, ip, port + "/" + sv.Protocol}
		for _, e := range sv.ClusterEndpoints {
			place := "other node"
			if local[e] {
				place = "this node"
			}
			rows = append(rows, append(row, fmt.Sprintf("%-17s %s", e, place)))
			row = []string{"", "", "", ""}
		}
		if len(sv.ClusterEndpoints) == 0 {
			rows = append(rows, append(row, "none"))
		}
	}
	return rows
}

// address is where a Service of the view is: its ClusterIP and port, or the node's address and its node port.
func (s *story) address(service, kind string) (string, error) {
	for _, sv := range s.view.Services {
		for _, f := range sv.Frontends {
			if sv.Namespace != "default" || sv.Name != service || f.Type != kind {
				continue
			}
			ip := addressing.Node
			if f.Address != "" {
				ip = netip.MustParseAddr(f.Address)
			}
			return netip.AddrPortFrom(ip, f.Port).String(), nil
		}
	}
	return "", fmt.Errorf("%s has no %s default/%s; this demo is made for examples/guestbook.yaml", s.config.manifest, kind, service)
}

func (s *story) requests(ctx context.Context) error {
	vip, err := s.address(frontend, "ClusterIP")
	if err != nil {
		return err
	}
	nodePort, err := s.address(frontend, "NodePort")
	if err != nil {
		return err
	}
	s.begin("%d HTTP requests from the client pod to the frontend's ClusterIP, http://%s/", s.config.requests, vip)
	t := ask(ctx, s.client.Host, vip, s.config.requests)
	if err := t.failure(); err != nil {
		return err
	}
	if err := s.chart(t, frontendPods("")); err != nil {
		return err
	}
	s.good("all answered in %s; the pods saw them come from %s, the client itself", milli(t.took), t.seenAs())
	if t.seenAs() != s.client.IP4.String() {
		return fmt.Errorf("the pods saw the client as %s, not %s", t.seenAs(), s.client.IP4)
	}
	n := s.config.requests / outsideShare
	if t = ask(ctx, s.External, nodePort, n); t.failure() != nil {
		return t.failure()
	}
	s.good("NodePort: %d requests from outside the cluster to http://%s/ answered by %d pods,", n, nodePort, len(t.who))
	s.say("   which saw them come from %s (the node: so the answers return its way)", t.seenAs())
	for _, name := range []string{redisMaster, redisSlave} {
		vip, err := s.address(name, "ClusterIP")
		if err != nil {
			return err
		}
		a, err := s.client.Ask(ctx, "tcp", vip)
		if err != nil {
			return err
		}
		s.good("%-12s %s answered by %s (%s)", name, vip, a.Pod, s.where(a.Pod))
	}
	return nil
}

// frontendPods are the names of the frontend's pods but one.
func frontendPods(but string) map[string]bool {
	m := map[string]bool{}
	for _, p := range podPlans {
		if p.port == httpPort && p.name != but {
			m[p.name] = true
		}
	}
	return m
}

// chart prints who answered. It fails unless those were exactly the pods wanted.
func (s *story) chart(t *tally, wanted map[string]bool) error {
	var list []bar
	for _, p := range podPlans {
		if t.who[p.name] > 0 || wanted[p.name] {
			list = append(list, bar{p.name, s.where(p.name), t.who[p.name]})
		}
	}
	s.bars(list)
	for _, b := range list {
		if wanted[b.name] != (b.n > 0) {
			return fmt.Errorf("%s answered %d times, which it should%s", b.name, b.n, map[bool]string{false: " not", true: ""}[wanted[b.name]])
		}
	}
	return nil
}
