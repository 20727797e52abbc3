package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
)

// patience is how long what must happen may take.
const patience = 20 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	harness.Must(t, err)
}

// eventually calls f until it returns nil.
func (c *cluster) eventually(what string, f func() error) {
	c.t.Helper()
	c.within(patience, what, f)
}

// within is eventually with a limit, and tells how long it took.
func (c *cluster) within(limit time.Duration, what string, f func() error) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for {
		err := f()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > limit {
			c.t.Fatalf("not within %v: %s: %v", limit, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// answers asks addr from h often and fails if anybody else than these pods answers, or one of them never.
func (c *cluster) answers(h *testbed.Host, addr string, pods ...*testbed.Pod) error {
	who, errs := h.Many(c.ctx, 60, 8, addr)
	if len(errs) > 0 {
		return fmt.Errorf("%s does not answer %s: %w", addr, h.Name, errs[0])
	}
	for _, p := range pods {
		if who[p.Name] == 0 {
			return fmt.Errorf("%s never answers %s at %s: %v", p.Name, h.Name, addr, who)
		}
		delete(who, p.Name)
	}
	if len(who) > 0 {
		return fmt.Errorf("%s is also answered at %s by %v", h.Name, addr, who)
	}
	return nil
}

// fails asks once and wants this error.
func (c *cluster) fails(h *testbed.Host, addr string, want error) error {
	ctx, cancel := context.WithTimeout(c.ctx, 300*time.Millisecond)
	defer cancel()
	a, err := h.Ask(ctx, "tcp", addr)
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%s: %+v, %v; want %v", addr, a, err, want)
}

// has reports a text that is missing.
func has(text string, parts ...string) error {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return fmt.Errorf("%q is not in:\n%s", p, text)
		}
	}
	return nil
}

// hasNot reports a text that should not be there.
func hasNot(text string, parts ...string) error {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return fmt.Errorf("%q is in:\n%s", p, text)
		}
	}
	return nil
}
