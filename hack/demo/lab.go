//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/nkp-proxy/nkp/test/testbed"
)

// The guestbook's cluster, as examples/guestbook.yaml has it.
const (
	nodeName    = "haofan-test-1"
	clusterCIDR = "172.18.0.0/16"
	clientName  = "client"
)

var addressing = testbed.Addressing{
	Node: netip.MustParseAddr("192.168.3.233"), Remote: netip.MustParseAddr("192.168.3.232"),
	Pods: netip.MustParsePrefix("172.18.1.0/24"), RemotePods: netip.MustParsePrefix("172.18.0.0/24"),
}

const (
	httpPort  = 80
	redisPort = 6379
)

// podPlan is a pod of the cluster: its number is the last byte of its address.
type podPlan struct {
	name   string
	number int
	local  bool
	port   int // 0 for the client, which serves nothing
}

var podPlans = []podPlan{
	{"frontend-5798c4bfc7-7bt7k", 22, true, httpPort},
	{"frontend-5798c4bfc7-v7889", 23, true, httpPort},
	{"frontend-5798c4bfc7-nbmvp", 20, false, httpPort},
	{"redis-master-59c8b8d4d8-x6q2w", 18, false, redisPort},
	{"redis-slave-6566d8d846-n2phs", 52, true, redisPort},
	{"redis-slave-6566d8d846-k8r5t", 19, false, redisPort},
	{clientName, 100, true, 0},
}

// lab is the network with its pods, and nkp on its node.
type lab struct {
	*testbed.Bed // nil before build
	nkp          string
	pods         map[string]*testbed.Pod
	client       *testbed.Pod
	working      string // the copy of the manifest that nkp follows
	agent        *agent // nil before startAgent
}

// build makes the network and the working copy. nkp does not run yet. After an error, too, the lab must be closed.
func (l *lab) build(manifest string) (err error) {
	if l.Bed, err = testbed.New(context.Background(), testbed.Options{IPv4: addressing}); err != nil {
		return err
	}
	l.pods, l.working = map[string]*testbed.Pod{}, filepath.Join(l.RunDir, "guestbook.yaml")
	if err := l.addPods(); err != nil {
		return err
	}
	return copyFile(l.working, manifest)
}

func (l *lab) addPods() error {
	var here, there []testbed.PodSpec
	for _, p := range podPlans {
		spec := testbed.PodSpec{Name: p.name, Number: p.number, NoIPv6: true}
		if p.local {
			here = append(here, spec)
		} else {
			there = append(there, spec)
		}
	}
	pods, err := l.AddPods(here...)
	if err != nil {
		return err
	}
	others, err := l.AddRemotePods(there...)
	if err != nil {
		return err
	}
	for _, p := range append(pods, others...) {
		l.pods[p.Name] = p
	}
	l.client = l.pods[clientName]
	for _, p := range podPlans {
		switch p.port {
		case httpPort:
			_, err = l.pods[p.name].ServeHTTP(p.port)
		case redisPort:
			_, err = l.pods[p.name].ServeTCP(p.port)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// where returns on which node a pod is.
func (l *lab) where(pod string) string {
	if p := l.pods[pod]; p != nil && p.Local {
		return "this node"
	}
	return "other node"
}

// close ends nkp and takes everything away.
func (l *lab) close() error {
	if l.Bed == nil {
		return nil
	}
	l.agent.stop()
	if err := l.Close(); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return nil
}
