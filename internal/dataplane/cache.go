package dataplane

import (
	"context"
	"time"
)

// Cache keeps an answer that is dear, so that many callers cost no more than one. Make it with NewCache. Get
// may be called from any goroutine.
type Cache[T any] struct {
	age  time.Duration
	busy chan struct{} // holds a token while an answer is fetched, and protects the fields below
	at   time.Time     // of last; zero: there is none
	last T
}

// NewCache returns an empty Cache, which keeps an answer for a time.
func NewCache[T any](age time.Duration) *Cache[T] {
	return &Cache[T]{age: age, busy: make(chan struct{}, 1)}
}

// Get returns the last answer while it is kept, else what fetch returns; an answer with an error is not kept.
// While another call fetches, Get waits, until the context ends.
func (c *Cache[T]) Get(ctx context.Context, fetch func() (T, error)) (answer T, err error) {
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	if time.Since(c.at) < c.age {
		return c.last, nil
	}
	if answer, err = fetch(); err == nil {
		c.at, c.last = time.Now(), answer
	}
	return answer, err
}
