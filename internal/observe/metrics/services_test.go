package metrics

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// Of more Service ports than may have a name the others are summed; no sum goes down, whoever comes and goes.
func TestServiceLimit(t *testing.T) {
	m, _ := newTest(OVS)
	now, broken := map[k8s.PortName]k8s.Counters{}, false
	m.CountServices(2, func(context.Context) (map[k8s.PortName]k8s.Counters, error) {
		if broken {
			return nil, errors.New("the switch does not answer")
		}
		return now, nil
	})
	name := func(s string) k8s.PortName {
		return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: s}, Port: "http", Protocol: "TCP", Family: k8s.IPv4}
	}
	set := func(s string, connections uint64) {
		now[name(s)] = k8s.Counters{Connections: connections, Bytes: &k8s.Directions{In: 10 * connections, Out: 100 * connections}}
	}
	is := func(s string, connections uint64) {
		t.Helper()
		labels := []string{"namespace=ns", "service=" + s, "port=http", "protocol=TCP", "ip_family=IPv4"}
		if s == "" {
			labels = []string{"namespace=", "service=", "port=", "protocol=", "ip_family="}
		}
		if got := value(t, m, "nkp_service_connections_total", labels...); got != float64(connections) {
			t.Errorf("connections of %q: %v, want %d", s, got, connections)
		}
		if got := value(t, m, "nkp_service_bytes_total", append(labels, "direction=out")...); got != float64(100*connections) {
			t.Errorf("bytes of %q: %v, want %d", s, got, 100*connections)
		}
	}
	unlisted := func(n float64) {
		t.Helper()
		if got := value(t, m, "nkp_service_metrics_unlisted"); got != n {
			t.Errorf("%v unlisted, want %v", got, n)
		}
	}
	for i := range 4 {
		set(fmt.Sprint("s", i), uint64(i+1))
	}
	is("s0", 1)
	is("s1", 2)
	is("", 3+4)
	unlisted(2)

	set("s3", 10) // s2 goes: what it had stays in the sum
	delete(now, name("s2"))
	is("", 3+10)
	unlisted(1)

	delete(now, name("s0")) // makes room, which s3 must not take: the sum would go down
	set("s9", 5)
	is("s1", 2)
	is("s9", 5)
	is("", 13)

	set("s3", 4) // its counter started over
	is("", 13+4)

	broken = true
	if _, err := m.Gatherer().Gather(); err != nil {
		t.Errorf("a switch that does not answer must not cost the other metrics: %v", err)
	}
}
