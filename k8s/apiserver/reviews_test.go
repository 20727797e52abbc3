package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// reviewBed is a Reviewer at an API server that accepts the tokens "prometheus" and "stranger", with anything behind a colon; only the user prometheus may get /metrics.
type reviewBed struct {
	*Reviewer
	t       *testing.T
	handler http.Handler
	err     error // answered instead
	revoked bool  // prometheus' token is not accepted any more
	asked   int   // TokenReviews
	refused map[string]int
}

func newReviewBed(t *testing.T) *reviewBed {
	client := fake.NewClientset()
	b := &reviewBed{t: t, refused: map[string]int{}, Reviewer: newReviewer(client, slog.New(slog.DiscardHandler))}
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		b.asked++
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if name, _, _ := strings.Cut(review.Spec.Token, ":"); name == "stranger" || name == "prometheus" && !b.revoked {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: name,
				UID: "7", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}}
		}
		return true, review, b.err
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		s := review.Spec
		review.Status.Allowed = s.User == "prometheus" && s.UID == "7" && len(s.Groups) == 1 && len(s.Extra["k"]) == 1 &&
			*s.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
		return true, review, b.err
	})
	b.handler = b.Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "numbers") }),
		func(reason string) { b.refused[reason]++ })
	return b
}

// want asks for a path with an Authorization header and checks the status and a part of the answer.
func (b *reviewBed) want(method, path, header string, code int, text string) {
	b.t.Helper()
	r := httptest.NewRequest(method, path, nil)
	if header != "" {
		r.Header.Set("Authorization", header)
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	if w.Code != code || !strings.Contains(w.Body.String(), text) || (w.Header().Get("WWW-Authenticate") != "") != (code == 401) {
		b.t.Errorf("%s %s as %q: %d %q %v, want %d and %q", method, path, header, w.Code, w.Body, w.Header(), code, text)
	}
}

// Only clients that the API server accepts and allows the path are served. A grant holds for a minute, and for an hour while the API
// server does not answer.
func TestReviewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReviewBed(t)
		const prometheus = "Bearer prometheus"
		b.want("GET", "/metrics", prometheus, 200, "numbers")
		b.want("GET", "/metrics", "bearer  prometheus", 200, "numbers")
		if b.asked != 1 {
			t.Errorf("%d TokenReviews for two requests, want 1", b.asked)
		}
		b.want("GET", "/metrics", "", 401, "bearer token is required")
		b.want("GET", "/metrics", "Basic cHJvbWV0aGV1cw==", 401, "bearer token is required")
		b.want("GET", "/metrics", "Bearer forged", 401, "does not accept")
		b.want("GET", "/metrics", "Bearer stranger", 403, `user "stranger" may not get path "/metrics"`)
		b.want("GET", "/configz", prometheus, 403, `"/configz"`)
		b.want("PUT", "/metrics", prometheus, 403, "may not put")

		// The API server is away: known clients are served, others not.
		time.Sleep(grantFresh)
		b.err = errors.New("connection refused")
		asked := b.asked
		for range 3 {
			b.want("GET", "/metrics", prometheus, 200, "numbers")
			b.want("GET", "/metrics", "Bearer stranger", 503, "API server")
		}
		if b.asked != asked+1 {
			t.Errorf("%d TokenReviews within the pause after a failure, want 1", b.asked-asked)
		}
		if got := b.Failure(); !strings.Contains(got, "TokenReview: connection refused") {
			t.Errorf("Failure() = %q", got)
		}
		time.Sleep(grantStale)
		b.want("GET", "/metrics", prometheus, 503, "API server")

		// It is back: the failure goes, and a revoked token is refused within the minute.
		time.Sleep(reviewPause)
		b.err = nil
		b.want("GET", "/metrics", prometheus, 200, "numbers")
		if b.Failure() != "" {
			t.Errorf("Failure() = %q after a review", b.Failure())
		}
		b.revoked = true
		time.Sleep(grantFresh)
		b.want("GET", "/metrics", prometheus, 401, "does not accept")
		b.err = errors.New("connection refused")
		b.want("GET", "/metrics", prometheus, 503, "API server") // a revoked token is not known any more

		if got, want := fmt.Sprint(b.refused), "map[forbidden:3 unauthenticated:4 unavailable:5]"; got != want {
			t.Errorf("refused: %s, want %s", got, want)
		}
	})
}

// Clients with made-up tokens, at one address or at many, neither load the API server nor fill the memory. They keep no known client
// out, also not when its token is renewed.
func TestReviewerIsBounded(t *testing.T) {
	for _, addresses := range []int{1, 250, 9_000} {
		synctest.Test(t, func(t *testing.T) {
			b := newReviewBed(t)
			b.want("GET", "/metrics", "Bearer prometheus", 200, "numbers")
			time.Sleep(grantFresh)
			b.asked = 0
			flood := func(n int) {
				for i := range n {
					r := httptest.NewRequest("GET", "/metrics", nil)
					r.RemoteAddr = fmt.Sprintf("10.7.%d.%d:1234", i%addresses/250, 1+i%addresses%250)
					r.Header.Set("Authorization", fmt.Sprint("Bearer forged", i))
					b.handler.ServeHTTP(httptest.NewRecorder(), r)
					time.Sleep(time.Millisecond)
				}
			}
			flood(10_000)
			most, least := unknownBurst+10*unknownQPS+1, unknownBurst
			if addresses == 1 {
				most, least = sourceBurst+10*sourceQPS+1, sourceBurst
			}
			if b.asked > most || b.asked < least {
				t.Errorf("%d addresses: %d TokenReviews for 10,000 requests in 10 s, want at most %d", addresses, b.asked, most)
			}
			if n := len(b.grants.Keys()); n != 1 {
				t.Errorf("%d grants are kept, want 1", n)
			}
			if n := len(b.sources.Keys()); n > maxSources {
				t.Errorf("%d addresses are remembered", n)
			}
			if b.refused[RefusedRate] < 9_800 {
				t.Errorf("refused: %v", b.refused)
			}
			for i := range 20 { // the token is renewed each hour
				flood(300)
				b.want("GET", "/metrics", fmt.Sprint("Bearer prometheus:", i), 200, "numbers")
				time.Sleep(time.Second)
			}
		})
	}
}

// A missing right is named with the role that has it, and a client that hangs up is no failure.
func TestReviewerFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReviewBed(t)
		b.err = context.Canceled
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", "/metrics", nil)
		r.Header.Set("Authorization", "Bearer prometheus")
		b.handler.ServeHTTP(httptest.NewRecorder(), r)
		if b.Failure() != "" {
			t.Errorf("after a client hung up: %q", b.Failure())
		}
		b.err = apierrors.NewForbidden(schema.GroupResource{Group: "authentication.k8s.io", Resource: "tokenreviews"}, "", errors.New("no role"))
		b.want("GET", "/metrics", "Bearer prometheus", 503, "API server")
		if got := b.Failure(); !strings.Contains(got, "ClusterRole system:auth-delegator") || strings.Contains(got, "\n") {
			t.Errorf("Failure() = %q", got)
		}
	})
}
