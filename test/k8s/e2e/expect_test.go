package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/chance"
	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

func must(t *testing.T, err error) {
	t.Helper()
	harness.Must(t, err)
}

// eventually calls f until it returns nil.
func (c *cluster) eventually(what string, f func() error) {
	c.t.Helper()
	wait.NoError(c.t, what, f)
}

// answers asks addr from h often and fails if anybody else than these pods answers, or one of them never.
func (c *cluster) answers(h *testbed.Host, addr string, pods ...*testbed.Pod) error {
	who, errs := h.Many(c.ctx, max(60, chance.Trials(1/float64(max(1, len(pods))))), 8, addr)
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

// fails asks once and wants this error. Silence is ErrTimeout once all pods that serve have answered a control.
func (c *cluster) fails(h *testbed.Host, addr string, want error) error {
	a, err := h.AskWith(c.ctx, "tcp", addr, testbed.AskOptions{Until: func(ctx context.Context) error { return c.control(ctx, h) }})
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%s: %+v, %v; want %v", addr, a, err, want)
}

// control asks all pods that serve directly. They serve for as long as their bed, also when the API has them no more.
func (c *cluster) control(ctx context.Context, h *testbed.Host) error {
	asked := 0
	for pod, port := range c.serving {
		if pod.Host == h {
			continue
		}
		if _, err := h.Ask(ctx, "tcp", netip.AddrPortFrom(pod.IP4, port).String()); err != nil {
			return fmt.Errorf("the control: %w", err)
		}
		asked++
	}
	if asked == 0 {
		return errors.New("there is no pod to ask as a control")
	}
	return nil
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
