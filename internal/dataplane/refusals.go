package dataplane

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/nkp-proxy/nkp/k8s"
)

// The backoff of a refused item doubles with each refusal in a row.
const (
	RetryFirst = time.Second
	RetryMost  = time.Minute
)

// Refusal is an item that a switch, the kernel or HNS refused.
type Refusal struct {
	Port    k8s.PortName // the zero PortName: it belongs to no Service
	Object  string       // what was refused, for people; "": the Service port as a whole
	Reason  string
	Times   int       // in a row
	RetryAt time.Time // of the next try, if it does not change before
}

// Refusals holds the refused items, by key. The installed rules of an item stay as they are. It is retried
// with exponential backoff, or at once when it changes, and delays no other item. Refusals is not safe for
// concurrent use. The zero value is not usable.
type Refusals[K comparable] struct {
	by     string
	log    *slog.Logger
	hook   func(Refusal)
	of     map[K]*Refusal
	pauses workqueue.TypedRateLimiter[K]
}

// NewRefusals returns Refusals without any. Each one goes to the log, which names by as what refuses, and to
// hook.
func NewRefusals[K comparable](by string, log *slog.Logger, hook func(Refusal)) *Refusals[K] {
	return &Refusals[K]{by: by, log: log, hook: hook, of: map[K]*Refusal{},
		pauses: workqueue.NewTypedItemExponentialFailureRateLimiter[K](RetryFirst, RetryMost)}
}

// Refuse records and reports a refusal at the time now. It sets Times and RetryAt.
func (r *Refusals[K]) Refuse(key K, what Refusal, now time.Time) {
	what.RetryAt = now.Add(r.pauses.When(key))
	what.Times = r.pauses.NumRequeues(key)
	r.of[key] = &what
	message := " refused a Service port; it is retried, and other Services are not affected"
	if what.Port == (k8s.PortName{}) {
		message = " refused what all Services share; it is retried"
	}
	r.log.Error(r.by+message, "service", what.Port,
		"protocol", what.Port.Protocol, "object", what.Object, "error", what.Reason, "retryIn",
		what.RetryAt.Sub(now))
	r.hook(what)
}

// Has reports whether the last attempt for key was refused.
func (r *Refusals[K]) Has(key K) bool { return r.of[key] != nil }

// Waits reports whether key is in backoff at the time now.
func (r *Refusals[K]) Waits(key K, now time.Time) bool {
	f := r.of[key]
	return f != nil && now.Before(f.RetryAt)
}

// Forget ends the backoff of key, because the item was accepted, has changed, or is not wanted any more.
func (r *Refusals[K]) Forget(key K) {
	delete(r.of, key)
	r.pauses.Forget(key)
}

// ForgetIf ends the backoff of the keys for which f returns true.
func (r *Refusals[K]) ForgetIf(f func(K) bool) {
	for key := range r.of {
		if f(key) {
			r.Forget(key)
		}
	}
}

// Next returns the time of the next retry; the zero Time if there is none.
func (r *Refusals[K]) Next() (at time.Time) {
	for _, f := range r.of {
		at = Earliest(at, f.RetryAt)
	}
	return at
}

// Len returns the number of refused items.
func (r *Refusals[K]) Len() int { return len(r.of) }

// All returns the refused items, sorted by Service port and object.
func (r *Refusals[K]) All() []Refusal {
	list := make([]Refusal, 0, len(r.of))
	for _, f := range r.of {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b Refusal) int {
		return cmp.Or(a.Port.Compare(b.Port), cmp.Compare(a.Object, b.Object))
	})
	return list
}
