package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

// Shortest and longest pause before a call is retried while the server is unreachable.
const (
	retryFirst = 250 * time.Millisecond
	retryMax   = 10 * time.Second
)

// health tracks whether the API server answers, kind by kind. Its methods may be called from any goroutine.
type health struct {
	url      string
	nodeName string

	mu       sync.Mutex          // protects all below; not held while calling out
	failing  map[k8s.Kind]string // error of the last call
	answered map[k8s.Kind]bool   // the server has answered at least once
	noAnswer string              // why the last request got no answer at all; "": it got one
	// since when the server does not answer for all required kinds; zero: it does
	away    time.Time
	noNode  bool // Nodes were listed, and this node's is not among them
	leftOut map[k8s.Kind]leftOut
	back    chan struct{} // closed and replaced when a kind answers again
	changed func()        // called when problems may have changed
}

func newHealth(url, nodeName string) *health {
	return &health{
		url: url, nodeName: nodeName, failing: map[k8s.Kind]string{}, answered: map[k8s.Kind]bool{},
		back: make(chan struct{}), changed: func() {}, away: time.Now(), leftOut: map[k8s.Kind]leftOut{},
	}
}

// onChange sets the function to call after changes. It must be called before any other method.
func (h *health) onChange(f func()) { h.changed = f }

// try calls f until the server answers. Pauses between calls grow, and end early when the server answers
// another call. An error answer that retrying cannot change is returned to the caller.
func (h *health) try(ctx context.Context, kind k8s.Kind, f func() error) error {
	for pause := retryFirst; ; pause = min(2*pause, retryMax) {
		h.mu.Lock()
		back := h.back
		h.mu.Unlock()
		err := f()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if versionUnavailable(err) {
			return err // the reflector recovers from it
		}
		h.record(kind, err)
		if err == nil || !mayRecover(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-back:
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// versionUnavailable reports whether the server no longer has the requested resource version, or does not
// have it yet.
func versionUnavailable(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// mayRecover reports whether an error may end by itself (the server is starting) or by an operator's action
// (permissions are missing).
func mayRecover(err error) bool {
	if errors.Is(err, errTooLong) {
		return false
	}
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		return true
	}
	return apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTooManyRequests(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
}

func (h *health) record(kind k8s.Kind, err error) {
	h.mu.Lock()
	text := errorText(kind, err)
	before := h.failing[kind]
	if text == "" {
		delete(h.failing, kind)
		h.answered[kind] = true
		if before != "" {
			close(h.back)
			h.back = make(chan struct{})
		}
	} else {
		h.failing[kind] = text
	}
	h.updateAway()
	h.mu.Unlock()
	if text != before {
		h.changed()
	}
}

// errorText returns the error text for status; "" for nil.
func errorText(kind k8s.Kind, err error) string {
	if err == nil {
		return ""
	}
	return plainError(kind, err).Error() + "; the last state stays in force"
}

// plainError returns an error of one line without the request's URL. An error that the server returned names
// the kind; a missing answer concerns all kinds.
func plainError(kind k8s.Kind, err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return fmt.Errorf("cannot list %ss: %s", kind, brief.Line(err.Error()))
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	return errors.New(brief.Line(err.Error()))
}

// setNode records whether this node's Node object exists, once Nodes were listed.
func (h *health) setNode(exists bool) {
	h.mu.Lock()
	h.noNode = !exists
	h.mu.Unlock()
	h.changed()
}

// setLeftOut records which objects of a kind are left out.
func (h *health) setLeftOut(kind k8s.Kind, left leftOut) {
	h.mu.Lock()
	h.leftOut[kind] = left
	h.mu.Unlock()
	h.changed()
}

// updateAway records when the server stops and resumes answering. mu is held.
func (h *health) updateAway() {
	switch {
	case h.answers():
		h.away = time.Time{}
	case h.away.IsZero():
		h.away = time.Now()
	}
}

// awaySince returns since when the server does not answer for all required kinds (all but ServiceCIDRs); the
// zero Time: it does.
func (h *health) awaySince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.away
}

// answers reports whether the server answers for all required kinds. mu is held.
func (h *health) answers() bool {
	if h.noAnswer != "" {
		return false
	}
	for kind := range h.failing {
		if kind != k8s.KindServiceCIDR {
			return false
		}
	}
	return h.answered[k8s.KindService] && h.answered[k8s.KindEndpointSlice]
}

// problems returns the current problems. ServiceCIDRs are not required: if they cannot be followed, that is a
// warning.
func (h *health) problems() k8s.Problems {
	h.mu.Lock()
	defer h.mu.Unlock()

	var p k8s.Problems
	where := "API server " + h.url
	add := func(list *[]k8s.Warning, text string) {
		w := k8s.Warning{Where: where, Text: text}
		if !slices.Contains(p.Errors, w) && !slices.Contains(*list, w) {
			*list = append(*list, w)
		}
	}

	if h.noAnswer != "" {
		add(&p.Errors, h.noAnswer)
	}
	for _, k := range []k8s.Kind{k8s.KindEndpointSlice, k8s.KindNode, k8s.KindService} {
		if text, bad := h.failing[k]; bad {
			add(&p.Errors, text)
		}
	}
	if text, bad := h.failing[k8s.KindServiceCIDR]; bad {
		add(&p.Warnings, text)
	}
	for _, k := range slices.Sorted(maps.Keys(h.leftOut)) {
		if left := h.leftOut[k]; left.number > 0 {
			add(&p.Warnings, left.warning(k))
		}
	}

	if h.noNode {
		p.Warnings = append(p.Warnings, h.noNodeWarning())
	}
	return p
}

func (h *health) noNodeWarning() k8s.Warning {
	return k8s.Warning{
		Where:  "API server " + h.url,
		Object: k8s.Ref{Kind: k8s.KindNode, Name: h.nodeName}.String(),
		Text:   "does not exist: its addresses and zone are unknown; name this node with --hostname-override",
	}
}

// recordContact records how the last request ended.
func (h *health) recordContact(err error) {
	h.mu.Lock()
	before := h.noAnswer
	h.noAnswer = errorText("", err)
	changed := h.noAnswer != before
	h.updateAway()
	h.mu.Unlock()
	if changed {
		h.changed()
	}
}
