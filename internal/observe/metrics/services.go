package metrics

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// collectTimeout bounds how long a scrape waits for the data plane's counters: less than Prometheus waits.
const collectTimeout = 5 * time.Second

// serviceCounters serves counters of Service ports: up to limit of them by name, the others as a sum. A
// Service port that is served by name stays so until it is gone, so that series do not come and go with
// traffic.
type serviceCounters struct {
	read  func(context.Context) (map[k8s.PortName]k8s.Counters, error)
	limit int

	mu     sync.Mutex // protects all below
	listed map[k8s.PortName]bool
	before map[k8s.PortName]k8s.Counters // of the others, at the last scrape
	rest   sum
}

// CountServices serves the counters that read returns, of at most limit Service ports by name.
func (m *Metrics) CountServices(
	limit int, read func(context.Context) (map[k8s.PortName]k8s.Counters, error),
) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.services = &serviceCounters{read: read, limit: limit,
		listed: map[k8s.PortName]bool{}, before: map[k8s.PortName]k8s.Counters{}}
}

// states emits the counters; none if they cannot be read now.
func (s *serviceCounters) states(emit Emit) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	now, err := s.read(ctx)
	if err != nil {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	for n := range s.listed {
		if _, ok := now[n]; !ok {
			delete(s.listed, n)
		}
	}

	others := map[k8s.PortName]k8s.Counters{}
	for _, n := range slices.SortedFunc(maps.Keys(now), k8s.PortName.Compare) {
		if _, was := s.before[n]; !s.listed[n] && !was && len(s.listed) < s.limit {
			s.listed[n] = true
		}
		if s.listed[n] {
			emitService(emit, now[n], n.Namespace, n.Name, n.Port, string(n.Protocol), n.Family.String())
			continue
		}
		others[n] = now[n]
		s.rest.grow(s.before[n], now[n])
	}

	s.before = others
	emit(serviceUnlisted, float64(len(others)))
	if s.rest.any {
		emitService(emit, s.rest.Counters, "", "", "", "", "")
	}
}

// sum adds up counters that come and go, and never goes down itself.
type sum struct {
	k8s.Counters
	any bool // something was added
}

// grow adds the increase from before to now. A counter that went down has restarted at 0.
func (s *sum) grow(before, now k8s.Counters) {
	s.any = true
	s.Connections += since(before.Connections, now.Connections)
	s.Packets = growDirections(s.Packets, before.Packets, now.Packets)
	s.Bytes = growDirections(s.Bytes, before.Bytes, now.Bytes)
	for why, n := range now.Dropped {
		if s.Dropped == nil {
			s.Dropped = map[k8s.DropReason]uint64{}
		}
		s.Dropped[why] += since(before.Dropped[why], n)
	}
}

func growDirections(total, before, now *k8s.Directions) *k8s.Directions {
	if now == nil {
		return total
	}
	if total == nil {
		total = &k8s.Directions{}
	}
	if before == nil {
		before = &k8s.Directions{}
	}
	total.In += since(before.In, now.In)
	total.Out += since(before.Out, now.Out)
	return total
}

func since(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func emitService(emit Emit, c k8s.Counters, labels ...string) {
	emit(serviceConnections, float64(c.Connections), labels...)
	both := func(d *Definition, n *k8s.Directions) {
		if n != nil { // else it is not counted
			emit(d, float64(n.In), append(slices.Clone(labels), "in")...)
			emit(d, float64(n.Out), append(slices.Clone(labels), "out")...)
		}
	}
	both(servicePackets, c.Packets)
	both(serviceBytes, c.Bytes)
	for why, n := range c.Dropped {
		emit(serviceDropped, float64(n), append(slices.Clone(labels), string(why))...)
	}
}
