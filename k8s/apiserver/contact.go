package apiserver

import (
	"net/http"
	"os"
	"strconv"
	"time"
)

// How soon a server that says nothing at all is noticed: a silent connection is asked whether it lives after idleTimeout
// and given up pingTimeout later, and a new one is tried for dialTimeout. With client-go's own numbers a node that is cut
// off learns of it after more than five minutes: it retries timeouts ten times before it tells anybody.
const (
	idleTimeout = 10 * time.Second
	pingTimeout = 5 * time.Second
	dialTimeout = 5 * time.Second
)

// noticeSilence sets what client-go reads from the environment alone, unless somebody has.
func noticeSilence() {
	for name, d := range map[string]time.Duration{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": idleTimeout, "HTTP2_PING_TIMEOUT_SECONDS": pingTimeout,
	} {
		if os.Getenv(name) == "" {
			os.Setenv(name, strconv.Itoa(int(d.Seconds())))
		}
	}
}

// contact is a RoundTripper that tells health whether requests are answered, also those that client-go retries by itself.
type contact struct {
	next   http.RoundTripper
	health *health
}

func (h *health) observe(next http.RoundTripper) http.RoundTripper { return contact{next, h} }

// WrappedRoundTripper is part of k8s.io/apimachinery's net.RoundTripperWrapper.
func (c contact) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip is part of http.RoundTripper.
func (c contact) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if err == nil || r.Context().Err() == nil {
		c.health.noteContact(err)
	}
	return answer, err
}

// noteContact notes how the last request ended.
func (h *health) noteContact(err error) {
	h.mu.Lock()
	before := h.silence
	h.silence = errorText("", err)
	changed := h.silence != before
	h.noteAway()
	h.mu.Unlock()
	if changed {
		h.changed()
	}
}
