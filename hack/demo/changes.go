//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/test/testbed"
)

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

func (s *story) agentDies(ctx context.Context) error {
	s.begin("nkp is killed (kill -9) and started again while requests go on")
	vip, err := s.address(frontend, "ClusterIP")
	if err != nil {
		return err
	}
	before, err := s.installed()
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
	after, err := s.installed()
	if err != nil {
		return err
	}
	youngest, err := compareInstalled(before, after)
	if err != nil {
		return err
	}
	if youngest < since {
		return fmt.Errorf("a flow on the switch is only %v old, nkp was killed %v ago: the restart wrote it again", youngest, since)
	}
	s.good("\"nkp diff\" finds no difference, and nothing was written again: the same %d flows and %d groups,", len(after.flows), len(after.groups))
	s.say("   the youngest flow is %.2f s old and nkp was killed %.2f s ago", youngest.Seconds(), since.Seconds())
	s.good("%d requests meanwhile, none failed", going.answered())
	return nil
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

func shorten(text string, n int) string {
	if len(text) > n {
		return text[:n-3] + "..."
	}
	return text
}
