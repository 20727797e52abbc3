package dataplane

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An answer is kept for its time, and an error is not. A caller that finds another one at work waits no longer than its context.
func TestCache(t *testing.T) { synctest.Test(t, testCache) }

func testCache(t *testing.T) {
	c, fetched := NewCache[int](time.Second), 0
	var fails error
	get := func(ctx context.Context) (int, error) {
		return c.Get(ctx, func() (int, error) {
			fetched++
			time.Sleep(100 * time.Millisecond)
			return fetched, fails
		})
	}
	for i, step := range []struct {
		after time.Duration
		fails error
		want  int
	}{{0, nil, 1}, {900 * time.Millisecond, nil, 1}, {200 * time.Millisecond, errors.New("no"), 2}, {0, nil, 3}, {0, nil, 3}} {
		time.Sleep(step.after)
		fails = step.fails
		if got, err := get(t.Context()); got != step.want || !errors.Is(err, fails) {
			t.Errorf("%d: %d, %v, want %d", i, got, err, step.want)
		}
	}
	time.Sleep(time.Second)
	go get(t.Context())
	synctest.Wait()
	hurry, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := get(hurry); !errors.Is(err, context.DeadlineExceeded) || fetched != 4 {
		t.Errorf("while another fetches: %v, %d calls", err, fetched)
	}
	time.Sleep(time.Second)
}
