//go:build linux

package ofctrl

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// TestNoLeaks opens and ends connections in every way and counts goroutines. It does not run beside other tests.
func TestNoLeaks(t *testing.T) {
	b := newBridge(t)
	b.dial(Options{}).Close()
	before := goroutines()
	d := flow.Diff(flow.NewState(), bigState(200))
	for i := range 20 {
		c, err := Dial(t.Context(), b.target(), Options{OnPacketIn: func(*PacketIn) {}})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { c.Commit(t.Context(), d) })
		wg.Go(func() { c.ReadBack(t.Context(), ownFilter) })
		if i%2 == 0 {
			wg.Wait()
		}
		c.Close()
		wg.Wait()
		if err := c.Err(); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if _, err := c.Commit(t.Context(), d); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		c.Close()
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		c := NewClient(b.target(), ClientOptions{})
		if err := c.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
		c = NewClient(Target{Network: "unix", Address: "/nonexistent"}, ClientOptions{MinBackoff: time.Millisecond})
		ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		c.Run(ctx)
		cancel()
		if s := c.Status(); s.Attempts < 2 || s.LastError == nil || s.Connected {
			t.Errorf("%+v", s)
		}
	}
	for i := 0; goroutines() > before; i++ {
		if i == 100 {
			t.Fatalf("%d goroutines, %d before", goroutines(), before)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
