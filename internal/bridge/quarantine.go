package bridge

import (
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// A Service port whose objects the switch refused is kept out of the way of the others: what is installed of it
// stays as it is, and it is tried again with growing pauses, or at once when it changes.
const (
	retryMin = time.Second
	retryMax = time.Minute
)

// refusal is why a Service port waits, and until when.
type refusal struct {
	err   string
	pause time.Duration
	until time.Time
	count int // refusals in a row
}

// quarantine holds the Service ports that wait. The zero PortName stands for what belongs to no Service.
type quarantine map[k8s.PortName]*refusal

// refuse notes a refusal; the pause doubles with each in a row.
func (q quarantine) refuse(n k8s.PortName, reason string, now time.Time) {
	r := q[n]
	if r == nil {
		r = &refusal{pause: retryMin / 2}
		q[n] = r
	}
	r.pause = min(2*r.pause, retryMax)
	r.err, r.until = reason, now.Add(r.pause)
	r.count++
}

// waiting tells whether n must not be tried now.
func (q quarantine) waiting(n k8s.PortName, now time.Time) bool {
	r := q[n]
	return r != nil && now.Before(r.until)
}

// release ends the wait of those who were tried at the time now and not refused again.
func (q quarantine) release(now time.Time) {
	for n := range q {
		if !q.waiting(n, now) {
			delete(q, n)
		}
	}
}

// next gives the time of the next try; the zero time if nothing waits.
func (q quarantine) next() time.Time {
	var t time.Time
	for _, r := range q {
		if t.IsZero() || r.until.Before(t) {
			t = r.until
		}
	}
	return t
}
