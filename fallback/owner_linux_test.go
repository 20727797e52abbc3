package fallback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Of two Planes in one network namespace the second waits for the end of the first, and says in the end which process that is. A
// Plane that is killed leaves no lock.
func TestOneOwner(t *testing.T) {
	was := lockDir
	t.Cleanup(func() { lockDir = was })
	lockDir = filepath.Join(t.TempDir(), "nkp")
	p := &Plane{opts: Options{Log: slog.New(slog.DiscardHandler)}}
	own := func(t *testing.T) func() {
		t.Helper()
		release, err := p.own(t.Context())
		must(t, err)
		return release
	}
	own(t)()
	if left, err := os.ReadDir(lockDir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}

	synctest.Test(t, func(t *testing.T) {
		first := own(t)
		_, err := p.own(t.Context())
		if want := fmt.Sprintf("another nkp (process %d) programs iptables or nftables in this network namespace", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a second owner: %v", err)
		}
		ended, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.own(ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one whose context ends: %v", err)
		}
		time.AfterFunc(ownerWait/2, first)
		own(t)()
	})

	file := filepath.Join(lockDir, "netns-1.lock") // as a process leaves it that was killed
	must(t, os.WriteFile(file, []byte("process 1 of long ago and of a longer name\n"), 0o600))
	lock, _, err := tryLock(file)
	if text, _ := os.ReadFile(file); err != nil || lock == nil || string(text) != fmt.Sprintf("process %d\n", os.Getpid()) {
		t.Errorf("after a crash: %q, %v", text, err)
	}
}
