//go:build linux

package ui

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nkp-proxy/nkp/test/harness"
	"github.com/nkp-proxy/nkp/test/wait"
)

// browser is a tab of a headless Chromium. It records what the page logs as an error, the hosts that it asks, and how often.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex // protects all below
	errors []string
	hosts  map[string]bool
	asked  int // requests
}

func startBrowser(t *testing.T, address string) *browser {
	t.Helper()
	// Chromium's sandbox does not run as root.
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), chromedp.Headless, chromedp.NoSandbox, chromedp.NoFirstRun, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1280, 800))
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx, hosts: map[string]bool{}}
	harness.Must(t, chromedp.Listen(ctx, b.record))
	b.do(chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, log.Enable, cdp.Empty{})
		return err
	}), chromedp.EmulateViewport(1280, 800), chromedp.Navigate(address))
	return b
}

// record keeps what a test of the page must not see.
func (b *browser) record(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, fmt.Sprintf("%s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			b.errors = append(b.errors, fmt.Sprintf("console: %+v", e.Args))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			b.errors = append(b.errors, e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err == nil && u.Scheme != "data" {
			b.hosts[u.Host] = true
			b.asked++
		}
	}
}

// clean fails the test if the page logged an error or asked another host.
func (b *browser) clean(host string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errors {
		b.t.Errorf("the page: %s", e)
	}
	for h := range b.hosts {
		if h != host {
			b.t.Errorf("the page asked %s", h)
		}
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	harness.Must(b.t, chromedp.Do(b.ctx, steps...))
}

// text returns the text of the first element that matches, "" if there is none.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return b.evaluate(fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
}

// evaluate returns the value of a JavaScript expression as a string.
func (b *browser) evaluate(expression string) string {
	b.t.Helper()
	s, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	harness.Must(b.t, err)
	return s
}

// sees waits until the text of an element contains the words.
func (b *browser) sees(selector string, words ...string) {
	b.t.Helper()
	wait.NoError(b.t, selector, func() error {
		text := b.text(selector)
		for _, w := range words {
			if !strings.Contains(text, w) {
				return fmt.Errorf("it does not say %q; the page: %s", w, b.text("body"))
			}
		}
		return nil
	})
}

// polls waits until the page has polled again and shows the answers. A poll is two requests, and the next comes after their answers.
func (b *browser) polls() {
	b.t.Helper()
	asked := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.asked
	}
	before := asked()
	wait.For(b.t, "polls of the page", func() bool { return asked() >= before+4 })
}

// tab presses Tab until the element that has the focus matches, and checks that the focus can be seen.
func (b *browser) tab(selector string) {
	b.t.Helper()
	for range 60 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if b.evaluate(fmt.Sprintf("document.activeElement.matches(%q)", selector)) == "true" {
			if style := b.evaluate("getComputedStyle(document.activeElement).outlineStyle"); style == "none" {
				b.t.Errorf("%s has the focus, and nothing shows it", selector)
			}
			return
		}
	}
	b.t.Fatalf("Tab does not lead to %s", selector)
}

// pathsPassUsedBoxes fails the test if the packet's path runs through a box of the pipeline that the packet does not pass.
func (b *browser) pathsPassUsedBoxes() {
	b.t.Helper()
	crossed := b.evaluate(`(() => {
		const unused = [...document.querySelectorAll(".box.table:not(.used)")];
		const inside = (p, r) => p.x > +r.getAttribute("x") && p.x < +r.getAttribute("x") + +r.getAttribute("width") &&
			p.y > +r.getAttribute("y") && p.y < +r.getAttribute("y") + +r.getAttribute("height");
		const paths = [...document.querySelectorAll("path.edge.used")];
		if (!paths.length) return "no path at all";
		return paths.flatMap((path) => Array.from({ length: 200 }, (_, i) => path.getPointAtLength(path.getTotalLength() * i / 199))
			.flatMap((p) => unused.filter((b) => inside(p, b.querySelector("rect"))).map((b) => b.textContent)))[0] ?? "";
	})()`)
	if crossed != "" {
		b.t.Errorf("the packet's path runs through %q", crossed)
	}
}

func (b *browser) press(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// picture saves the page in light and dark, down to an element. The folder is NKP_UI_PICTURES, or one that ends with the test.
func (b *browser) picture(name, last string) {
	b.t.Helper()
	height, err := chromedp.Run(b.ctx, chromedp.Evaluate[int64](fmt.Sprintf("Math.round(document.querySelector(%q).getBoundingClientRect().bottom) + 12", last)))
	harness.Must(b.t, err)
	b.do(chromedp.EmulateViewport(1280, height))
	defer b.do(chromedp.EmulateViewport(1280, 800))
	dir := os.Getenv("NKP_UI_PICTURES")
	if dir == "" {
		dir = b.t.TempDir()
	}
	harness.Must(b.t, os.MkdirAll(dir, 0o755))
	b.evaluate("document.activeElement.blur()")
	for _, scheme := range []string{"dark", "light"} {
		b.do(chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
			_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
			return err
		}))
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		harness.Must(b.t, err)
		if len(png) > 240_000 {
			b.t.Errorf("picture %s: %d bytes", name, len(png))
		}
		harness.Must(b.t, os.WriteFile(filepath.Join(dir, name+"-"+scheme+".png"), png, 0o644))
	}
}
