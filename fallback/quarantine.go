package fallback

import (
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// refusal is why an item waits, and until when.
type refusal struct {
	reason string
	pause  time.Duration
	until  time.Time
}

// quarantine holds the items that iptables refused. What is installed of them stays as it is; they are tried again with
// growing pauses, or at once when they change, and hold up nobody else.
type quarantine map[k8s.PortName]*refusal

// refuse notes a refusal; the pause doubles with each in a row.
func (q quarantine) refuse(n k8s.PortName, reason string, now time.Time) {
	r := q[n]
	if r == nil {
		r = &refusal{pause: retryMin / 2}
		q[n] = r
	}
	r.reason, r.pause = reason, min(2*r.pause, retryMax)
	r.until = now.Add(r.pause)
}

// waits reports whether n must not be tried now.
func (q quarantine) waits(n k8s.PortName, now time.Time) bool {
	r := q[n]
	return r != nil && now.Before(r.until)
}

// next gives the time of the next try; the zero time if nothing waits.
func (q quarantine) next() (t time.Time) {
	for _, r := range q {
		if t.IsZero() || r.until.Before(t) {
			t = r.until
		}
	}
	return t
}

// reasons gives what Status shows.
func (q quarantine) reasons() map[string]string {
	if len(q) == 0 {
		return nil
	}
	m := make(map[string]string, len(q))
	for n, r := range q {
		m[n.String()+" ("+string(n.Protocol)+")"] = r.reason
	}
	return m
}
