package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/apifake"
)

func statusError(code int32, reason metav1.StatusReason) error {
	return &apierrors.StatusError{ErrStatus: *apifake.Status(code, reason, "no")}
}

// TestTryAgain checks which answers are waited out, with pauses of 15 s at most, and which are returned at once. Returned, they
// would meet the pauses of client-go's reflector, which grow to a minute and do not end when another kind is answered.
func TestTryAgain(t *testing.T) {
	for _, c := range []struct {
		err   error
		again bool
		event bool // an Event is written again, too
	}{
		{errors.New("connection refused"), true, true},
		{fmt.Errorf("list: %w", context.DeadlineExceeded), true, true},
		{statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable), true, true},
		{statusError(http.StatusInternalServerError, metav1.StatusReasonInternalError), true, true},
		{statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests), true, true},
		{statusError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout), true, true},
		{statusError(http.StatusInternalServerError, metav1.StatusReasonServerTimeout), true, true},
		{statusError(http.StatusUnauthorized, metav1.StatusReasonUnauthorized), true, true},
		{statusError(http.StatusForbidden, metav1.StatusReasonForbidden), true, false},
		{fmt.Errorf("wrapped: %w", statusError(http.StatusForbidden, metav1.StatusReasonForbidden)), true, false},
		{statusError(http.StatusBadRequest, metav1.StatusReasonBadRequest), false, false},
		{statusError(http.StatusNotFound, metav1.StatusReasonNotFound), false, false},
		{statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed), false, false},
		{statusError(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), false, false},
		{statusError(http.StatusConflict, metav1.StatusReasonConflict), false, false},
		{statusError(http.StatusGone, metav1.StatusReasonExpired), false, false},
		{statusError(http.StatusGone, metav1.StatusReasonGone), false, false},
		{errTooLong, false, false},
		{fmt.Errorf("list: %w", errTooLong), false, false},
	} {
		t.Run(c.err.Error()+" "+string(apierrors.ReasonForError(c.err)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHealth("u", "n")
				calls, start := 0, time.Now()
				err := h.try(t.Context(), k8s.KindService, func() error {
					if calls++; calls > 20 {
						return nil
					}
					return c.err
				})
				switch took := time.Since(start); {
				case !c.again && (calls != 1 || !errors.Is(err, c.err) || took != 0):
					t.Errorf("%d calls in %v, then %v; want one", calls, took, err)
				case c.again && (calls != 21 || err != nil):
					t.Errorf("%d calls, then %v; want 20 that fail and one more", calls, err)
				case c.again && (took < 20*retryFirst/2 || took > 20*retryMax*3/2):
					t.Errorf("20 pauses took %v", took)
				}
				if got := isTemporary(c.err); got != c.event {
					t.Errorf("worth another attempt at an Event: %v, want %v", got, c.event)
				}
			})
		})
	}
}

// TestTryPauses checks that a pause ends with any kind's first answer after a failure, and with the context.
func TestTryPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth("u", "n")
		h.record(k8s.KindNode, errors.New("refused"))
		forbidden, failing := statusError(http.StatusForbidden, metav1.StatusReasonForbidden), true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- h.try(ctx, k8s.KindService, func() error {
				if failing {
					return forbidden
				}
				return nil
			})
		}()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		failing = false
		start := time.Now()
		h.record(k8s.KindNode, nil)
		if err := <-done; err != nil || time.Since(start) != 0 {
			t.Errorf("after another kind's answer: %v, after %v", err, time.Since(start))
		}
		failing = true
		go func() { done <- h.try(ctx, k8s.KindService, func() error { return forbidden }) }()
		time.Sleep(5 * time.Minute)
		start = time.Now()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
			t.Errorf("after the context's end: %v, after %v", err, time.Since(start))
		}
	})
}
