package apiserver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/nkp-proxy/nkp/k8s/internal/brief"
)

const (
	grantFresh    = time.Minute      // how long a grant holds before the API server is asked again
	grantStale    = time.Hour        // how long it holds while the API server does not answer
	maxGrants     = 64               // combinations of token, verb and path
	reviewTimeout = 5 * time.Second  // both requests together; Prometheus waits 10 s for a scrape
	reviewPause   = 10 * time.Second // after a failed review none is tried for this long

	// Reviews per second, and at once, for clients without a grant, so that they cannot load the API server:
	// from one address, and from all addresses that never had a grant. Who scrapes from an address that had
	// one is not kept out by unknown clients when its token is renewed.
	sourceQPS, sourceBurst   = 1, 5
	unknownQPS, unknownBurst = 10, 20
	maxSources               = 4096 // that are remembered
)

// Reasons why a Reviewer refuses a request.
const (
	RefusedToken       = "unauthenticated"
	RefusedRights      = "forbidden"
	RefusedRate        = "rate_limit"
	RefusedUnavailable = "unavailable"
)

// Reviewer lets HTTP clients through that the API server knows and allows: a TokenReview authenticates the
// bearer token, and a SubjectAccessReview must allow the method on the path. nkp needs the role
// system:auth-delegator for both. All methods may be called from any goroutine.
type Reviewer struct {
	client         kubernetes.Interface
	log            *slog.Logger
	grants         *cache.LRUExpireCache // grant to the time.Time of the API server's answer
	unknownClients flowcontrol.PassiveRateLimiter
	knownSources   *cache.LRUExpireCache // sources that had a grant

	mu      sync.Mutex            // protects all below
	sources *cache.LRUExpireCache // source to its flowcontrol.PassiveRateLimiter
	failure string
	resume  time.Time // no review before
}

// grant is the key of something that the API server allowed.
type grant struct {
	token      [sha256.Size]byte
	verb, path string
}

// refusal is why a request is refused.
type refusal struct {
	code         int
	reason, text string
}

// NewReviewer prepares a Reviewer for the API server of opts. It does not connect.
func NewReviewer(opts Options, log *slog.Logger) (*Reviewer, error) {
	cfg, _, err := restConfig(opts)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // unknownClients and grantFresh bound the rate; a queue would only use up the client's time
	cfg.Wrap(new(transport).wrap)
	_, client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	return newReviewer(client, log), nil
}

func newReviewer(client kubernetes.Interface, log *slog.Logger) *Reviewer {
	return &Reviewer{
		client:         client,
		log:            log,
		grants:         cache.NewLRUExpireCache(maxGrants),
		knownSources:   cache.NewLRUExpireCache(maxGrants),
		unknownClients: flowcontrol.NewTokenBucketPassiveRateLimiter(unknownQPS, unknownBurst),
		sources:        cache.NewLRUExpireCache(maxSources),
	}
}

// Protect returns a handler that passes permitted requests to next. onRefused, if set, is called for each of
// the others.
func (v *Reviewer) Protect(next http.Handler, onRefused func(reason string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		no := v.review(r)
		if no == nil {
			next.ServeHTTP(w, r)
			return
		}
		if onRefused != nil {
			onRefused(no.reason)
		}
		if no.code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, no.text, no.code)
	})
}

// Failure returns why the API server could not be asked last; "": it could, or it was not asked.
func (v *Reviewer) Failure() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failure
}

// review returns nil if the request is permitted.
func (v *Reviewer) review(r *http.Request) *refusal {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return &refusal{http.StatusUnauthorized, RefusedToken, "a bearer token is required"}
	}

	// A grant holds for a while, and for longer while the API server does not answer.
	g := grant{sha256.Sum256([]byte(token)), strings.ToLower(r.Method), r.URL.Path}
	at, known := v.grants.Get(g)
	if known && time.Since(at.(time.Time)) < grantFresh {
		return nil
	}
	if v.paused() {
		if known {
			return nil
		}
		return &refusal{http.StatusServiceUnavailable, RefusedUnavailable, "the API server does not answer"}
	}

	// Clients without a grant are few at a time.
	from := sourceOf(r)
	if !known && !v.allows(from) {
		return &refusal{http.StatusTooManyRequests, RefusedRate, "too many clients that are not known yet"}
	}

	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	no, err := v.ask(ctx, token, &g)
	if r.Context().Err() == nil { // a client that hangs up is no failure of the API server
		v.record(err)
	}
	switch {
	case err != nil && known:
		return nil
	case err != nil:
		return &refusal{http.StatusServiceUnavailable, RefusedUnavailable,
			"the API server cannot be asked about this client"}
	case no != nil:
		v.grants.Remove(g)
		return no
	}
	v.grants.Add(g, time.Now(), grantStale)
	v.knownSources.Add(from, nil, grantStale)
	return nil
}

// sourceOf returns the client's address, of IPv6 the /64, of which one host may have all; the zero Prefix if
// it has none.
func sourceOf(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr := at.Addr().Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // the address has as many
	return p
}

// allows reports whether a client without a grant may be reviewed now.
func (v *Reviewer) allows(from netip.Prefix) bool {
	v.mu.Lock()
	limit, ok := v.sources.Get(from)
	if !ok {
		limit = flowcontrol.NewTokenBucketPassiveRateLimiter(sourceQPS, sourceBurst)
		v.sources.Add(from, limit, grantStale)
	}
	v.mu.Unlock()
	if !limit.(flowcontrol.PassiveRateLimiter).TryAccept() {
		return false
	}
	_, knownSources := v.knownSources.Get(from)
	return knownSources || v.unknownClients.TryAccept()
}

// ask asks the API server. An error means that it gave no verdict.
func (v *Reviewer) ask(ctx context.Context, token string, g *grant) (*refusal, error) {
	t, err := v.client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}},
		metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("TokenReview: %w", err)
	}
	if !t.Status.Authenticated {
		return &refusal{
			http.StatusUnauthorized, RefusedToken, "the API server does not accept the token",
		}, nil
	}

	user := &t.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for k, values := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(values)
	}
	s, err := v.client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
				NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: g.path, Verb: g.verb},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("SubjectAccessReview: %w", err)
	}
	if !s.Status.Allowed {
		text := fmt.Sprintf("user %q may not %s path %q", user.Username, g.verb, g.path)
		return &refusal{http.StatusForbidden, RefusedRights, text}, nil
	}
	return nil, nil
}

// paused reports whether the last review failed a moment ago.
func (v *Reviewer) paused() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Now().Before(v.resume)
}

// record records whether the API server answered.
func (v *Reviewer) record(err error) {
	text, resume := "", time.Time{}
	if err != nil {
		text, resume = brief.Line(err.Error()), time.Now().Add(reviewPause)
		if apierrors.IsForbidden(err) {
			text += ": nkp needs the ClusterRole system:auth-delegator for --metrics-authorization"
		}
		text = "clients of the metrics cannot be authenticated: " + text
	}
	v.mu.Lock()
	changed := text != v.failure
	v.failure, v.resume = text, resume
	v.mu.Unlock()
	switch {
	case changed && text != "":
		v.log.Warn(text)
	case changed:
		v.log.Info("clients of the metrics are authenticated again")
	}
}
