package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/testbed"
	"github.com/nkp-proxy/nkp/k8s"
)

const (
	frontend    = "frontend"
	redisMaster = "redis-master"
	redisSlave  = "redis-slave"

	leavingPod = "frontend-5798c4bfc7-v7889" // the pod that goes away
	masterIP   = "172.18.0.18"               // of redis-master's only pod
)

// story is the demo in progress.
type story struct {
	*screen
	*lab
	view  *k8s.View
	extra []string // what a refused or restarted thing left to say at the end
}

// show tells the story and takes everything away afterwards; with config.keep it waits for the end of ctx before that.
func show(ctx context.Context, c config, out *screen) (err error) {
	out.printf("%s\n", out.paint(bold, "nkp demo: the guestbook's Services on a private Open vSwitch; this machine's network is left alone"))
	s := &story{screen: out}
	defer func() {
		if s.lab == nil {
			return
		}
		failed := err != nil
		if failed && ctx.Err() == nil {
			err = fmt.Errorf("step %d (%s) failed: %w\nthe end of nkp's log:\n%s", s.step, s.title, err, s.logTail())
		}
		if e := s.close(); e != nil {
			err = errors.Join(err, e)
		} else if !failed {
			out.printf("\nnkp, pods and switch are gone, all cleaned up. The demo took %.1f s.\n", time.Since(out.start).Seconds())
		}
	}()
	s.lab = &lab{config: c} // until there is one
	for _, step := range []func(context.Context) error{
		s.setUp, s.services, s.requests, s.podLeaves, s.noEndpoints, s.agentDies, s.lookFurther,
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
	l, err := newLab(ctx, s.config)
	if l != nil {
		s.lab = l
	}
	if err != nil {
		return err
	}
	version, err := s.Appctl("version")
	if err != nil {
		return err
	}
	built := time.Since(start)
	s.say("this node   %-13s %-15s %s", nodeName, addressing.Node, strings.TrimSpace(version[:strings.IndexByte(version+"\n", '\n')]))
	for _, local := range []bool{true, false} {
		if !local {
			s.say("other node  %-13s %-15s behind a router", "haofan-test-2", addressing.Remote)
		}
		for _, p := range podPlans {
			if p.local == local {
				serves := map[int]string{httpPort: "HTTP on 80", redisPort: "TCP on 6379"}[p.port]
				s.say("            pod %-30s  %-13s  %s", p.name, s.pods[p.name].IP4, serves)
			}
		}
	}
	s.good("bridge %s, %d pods and a client outside the cluster (%s) built in %s", s.Bridge, len(podPlans), s.External.IP4, milli(built))
	start = time.Now()
	if err := s.startAgent(); err != nil {
		return err
	}
	took, err := s.settle(ctx, start)
	if err != nil {
		return err
	}
	flows, groups, err := s.installed()
	if err != nil {
		return err
	}
	s.good("nkp started; \"nkp diff\" finds the switch in step after %s: %d flows, %d groups", milli(took), len(flows), len(groups))
	return nil
}

func (s *story) services(context.Context) error {
	s.begin("The Services, as nkp understands the manifest (nkp plan -o json)")
	var err error
	if s.view, err = s.lab.view(); err != nil {
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
	n := s.config.requests / 5
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
		if wanted[p.name] != (t.who[p.name] > 0) {
			defer s.say("%s: %d answers", p.name, t.who[p.name])
		}
	}
	s.bars(list)
	for _, b := range list {
		if wanted[b.name] != (b.n > 0) {
			return fmt.Errorf("%s gave %d answers", b.name, b.n)
		}
	}
	return nil
}

func (s *story) podLeaves(ctx context.Context) error {
	s.begin("A pod goes away: its endpoint is taken out of the manifest while requests go on")
	vip, err := s.address(frontend, "ClusterIP")
	if err != nil {
		return err
	}
	open, err := hold(ctx, s.client.Host, vip, func(pod string) bool { return pod != leavingPod })
	if err != nil {
		return err
	}
	defer open.c.Close()
	going := keepAsking(ctx, s.client.Host, vip)
	defer going.end()
	if err := going.goOn(ctx, 50); err != nil {
		return err
	}
	edited := time.Now()
	line, _, err := s.removeEndpoint(s.pods[leavingPod].IP4.String())
	if err != nil {
		return err
	}
	took, err := s.settle(ctx, edited)
	if err != nil {
		return err
	}
	s.say("%s", s.paint(cyan, shorten("- "+strings.TrimPrefix(line, "- "), 92)))
	s.good("\"nkp diff\": the switch is in step %s after the edit", milli(took))
	// The datapath may use what it remembers of the old flows for some hundred milliseconds; a pod that ends in order
	// serves on meanwhile.
	if err := s.Settle(); err != nil {
		return err
	}
	if err := s.RemovePod(s.pods[leavingPod]); err != nil {
		return err
	}
	if err := going.goOn(ctx, 100); err != nil {
		return err
	}
	going.end()
	if err := going.failure(); err != nil {
		return err
	}
	if last := going.last[leavingPod]; last.After(edited) {
		s.good("%s answered for the last time %s after the edit, and then was stopped", leavingPod, milli(last.Sub(edited)))
	}
	s.good("%d requests meanwhile, none failed", going.answered())
	pod, err := open.ask(ctx)
	if err != nil {
		return fmt.Errorf("the connection to %s, open since before, broke: %w", open.pod, err)
	}
	if pod != open.pod {
		return fmt.Errorf("the connection to %s is answered by %s now", open.pod, pod)
	}
	s.good("a connection to %s, open since before, still works", pod)
	t := ask(ctx, s.client.Host, vip, s.config.requests)
	if err := t.failure(); err != nil {
		return err
	}
	s.say("%d requests again:", s.config.requests)
	return s.chart(t, frontendPods(leavingPod))
}

func (s *story) noEndpoints(ctx context.Context) error {
	s.begin("A Service without endpoints refuses at once: redis-master loses its only pod")
	vip, err := s.address(redisMaster, "ClusterIP")
	if err != nil {
		return err
	}
	line, before, err := s.removeEndpoint(masterIP)
	if err != nil {
		return err
	}
	edited := time.Now()
	s.say("%s", s.paint(cyan, shorten("- "+strings.TrimPrefix(line, "- "), 92)))
	took, err := s.settle(ctx, edited)
	if err != nil {
		return err
	}
	s.good("the switch is in step %s after the edit", milli(took))
	var refusal time.Duration
	err = s.await(ctx, func() (bool, error) { // the datapath may remember the old flows for a moment
		start := time.Now()
		_, err := s.client.Ask(ctx, "tcp", vip)
		refusal = time.Since(start)
		if errors.Is(err, testbed.ErrRefused) {
			return true, nil
		}
		return false, fmt.Errorf("%s is not refused: %w", vip, err)
	})
	if err != nil {
		return err
	}
	s.good("connect to %s: connection refused after %s (not a timeout)", vip, milli(refusal))
	if err := s.writeManifest(before); err != nil {
		return err
	}
	back := time.Now()
	err = s.await(ctx, func() (bool, error) {
		_, err := s.client.Ask(ctx, "tcp", vip)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	s.good("the endpoint is back in the manifest: answered again %s after the edit", milli(time.Since(back)))
	_, err = s.settle(ctx, back)
	return err
}

func (s *story) agentDies(ctx context.Context) error {
	s.begin("nkp is killed (kill -9) and started again while requests go on")
	vip, err := s.address(frontend, "ClusterIP")
	if err != nil {
		return err
	}
	flows, groups, err := s.installed()
	if err != nil {
		return err
	}
	going := keepAsking(ctx, s.client.Host, vip)
	defer going.end()
	s.agent.kill()
	killed, n := time.Now(), going.answered()
	if err := going.goOn(ctx, 100); err != nil {
		return err
	}
	s.good("%d requests answered while no nkp runs", going.answered()-n)
	if err := s.startAgent(); err != nil {
		return err
	}
	started := time.Now()
	took, err := s.agentReady(ctx, started)
	if err != nil {
		return err
	}
	if _, err := s.settle(ctx, started); err != nil {
		return err
	}
	if err := going.goOn(ctx, 50); err != nil {
		return err
	}
	going.end()
	if err := going.failure(); err != nil {
		return err
	}
	s.good("started again: it knows its switch and says \"in step\" after %s", milli(took))
	since := time.Since(killed)
	again, groupsAgain, err := s.installed()
	if err != nil {
		return err
	}
	youngest, err := compareInstalled(flows, groups, again, groupsAgain)
	if err != nil {
		return err
	}
	if youngest < since {
		return fmt.Errorf("a flow on the switch is only %v old, nkp was killed %v ago: the restart wrote it again", youngest, since)
	}
	s.good("nothing was written to the switch: same %d flows and %d groups, the youngest flow is %.1f s old,", len(again), len(groupsAgain), youngest.Seconds())
	s.say("   nkp was killed %.1f s ago; \"nkp diff\" is empty; %d requests meanwhile, none failed", since.Seconds(), going.answered())
	return nil
}

func shorten(text string, n int) string {
	if len(text) > n {
		return text[:n-3] + "..."
	}
	return text
}
