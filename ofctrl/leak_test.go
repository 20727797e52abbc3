//go:build linux

package ofctrl

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
	"github.com/nkp-proxy/nkp/test/wait"
)

// TestNoLeaks opens and ends connections in every way and counts goroutines. It does not run beside other tests.
func TestNoLeaks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := ofctrltest.Listen(path, ofctrltest.Options{})
	must(t, err)
	defer s.Close()
	target := Target{Network: "unix", Address: path}
	before := goroutines()
	d := flow.Diff(flow.NewState(), bigState(200))
	for i := range 20 {
		c, err := Dial(t.Context(), target, patient(Options{OnPacketIn: func(*PacketIn) {}}))
		must(t, err)
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
	for _, tc := range []struct {
		what   string
		target Target
		until  func(Status) bool
	}{
		{"a connection", target, func(s Status) bool { return s.Connected }},
		{"two attempts", Target{Network: "unix", Address: "/nonexistent"}, func(s Status) bool {
			return s.Attempts >= 2 && s.LastError != nil && !s.Connected
		}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := NewClient(tc.target, ClientOptions{Options: patient(Options{})})
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		wait.For(t, tc.what, func() bool { return tc.until(c.Status()) })
		cancel()
		if err := wait.Receive(t, "the end of Run", ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	wait.NoError(t, "the end of all goroutines", func() error {
		if n := goroutines(); n > before {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}
