package dataplane

import (
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Sums do not go down when flows come and go; a Service that is gone is forgotten, but stays in the node's sum.
func TestDrops(t *testing.T) {
	var d Drops
	web := k8s.PortName{Port: "web"}
	key := DropKey{web, k8s.DropNoEndpoint}
	served := true
	for i, tc := range []struct {
		now        map[DropKey]uint64
		port, node uint64
	}{
		{map[DropKey]uint64{key: 3}, 3, 3},
		{map[DropKey]uint64{key: 5}, 5, 5},
		{map[DropKey]uint64{key: 2}, 7, 7}, // made again
		{nil, 7, 7},
		{map[DropKey]uint64{key: 2, {Reason: k8s.DropNoEndpoint}: 1}, 9, 10},
	} {
		d.Count(tc.now, nil, func(k8s.PortName) bool { return served })
		by := map[k8s.PortName]k8s.Counters{web: {}}
		d.AddTo(by)
		if by[web].Dropped[k8s.DropNoEndpoint] != tc.port || d.Node()[k8s.DropNoEndpoint] != tc.node {
			t.Errorf("%d: %v and %v, want %d and %d", i, by[web].Dropped, d.Node(), tc.port, tc.node)
		}
	}
	d.Own(key)
	d.Count(map[DropKey]uint64{key: 2}, nil, func(k8s.PortName) bool { return true }) // not seen yet
	d.Count(map[DropKey]uint64{key: 4}, nil, func(k8s.PortName) bool { return true }) // one of them is nkp's own
	if d.ports[key] != 10 || d.Node()[k8s.DropNoEndpoint] != 11 || len(d.own) != 0 {
		t.Errorf("with a packet of nkp's own: %v, %v", d.ports, d.Node())
	}
	served = false
	d.Count(nil, nil, func(k8s.PortName) bool { return served })
	if len(d.ports) != 0 || d.Node()[k8s.DropNoEndpoint] != 11 {
		t.Errorf("after the Service: %v, %v", d.ports, d.Node())
	}
}

// A counter that is not read in its turn counts what has come since the last reading when it is read again.
func TestDropsInTurns(t *testing.T) {
	var d Drops
	key := DropKey{k8s.PortName{Port: "web"}, k8s.DropNoEndpoint}
	node, always := DropKey{Reason: k8s.DropNoEndpoint}, DropKey{Reason: k8s.DropUnservedPort}
	left, served := func(k8s.PortName) bool { return true }, func(n k8s.PortName) bool { return n == key.Port }
	d.Count(map[DropKey]uint64{key: 3, node: 7, always: 1}, nil, served)
	d.Count(map[DropKey]uint64{always: 2}, left, served)
	d.Count(map[DropKey]uint64{key: 5, node: 8, always: 3}, nil, served)
	if n := d.Node(); d.ports[key] != 5 || n[k8s.DropNoEndpoint] != 5+8 || n[k8s.DropUnservedPort] != 3 {
		t.Errorf("%d packets, want 5; of the node %v", d.ports[key], n)
	}
}
