package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nkp-proxy/nkp/internal/httpguard"
)

// waitingAfter is the delay after which Waiting answers commands. A shorter start needs no answer.
const waitingAfter = 500 * time.Millisecond

// Waiting answers commands on the agent's socket during a start, when there is no agent yet. Each answer
// names what the start waits for. Any goroutine may call Say.
type Waiting struct {
	mu    sync.Mutex // protects what and since
	what  string
	since time.Time

	stop context.CancelFunc
	done chan struct{}
}

// AnswerWaiting answers on a socket once the start has taken longer than waitingAfter. Stop must be called.
// If the socket cannot be created, the agent reports that when it creates its own.
func AnswerWaiting(path string, log *slog.Logger) *Waiting {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Waiting{what: "the data plane", since: time.Now(), stop: cancel, done: make(chan struct{})}
	go w.run(ctx, path, log) // ended by Stop
	return w
}

// Say records what the start waits for from now on.
func (w *Waiting) Say(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.what, w.since = what, time.Now()
}

// Stop ends the answers. When it returns, the socket is free for the agent.
func (w *Waiting) Stop() {
	w.stop()
	<-w.done
}

func (w *Waiting) run(ctx context.Context, path string, log *slog.Logger) {
	defer close(w.done)
	select {
	case <-ctx.Done():
		return
	case <-time.After(waitingAfter):
	}
	if path == "" {
		return
	}
	l, err := listen(path)
	if err != nil {
		log.Debug("no command is answered until the start is over", "error", err)
		return
	}
	srv := httpguard.New(socketLimits, log).Server(w)
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	_ = srv.Serve(l) // returns when it is closed
}

// ServeHTTP implements http.Handler.
func (w *Waiting) ServeHTTP(out http.ResponseWriter, _ *http.Request) {
	w.mu.Lock()
	text := fmt.Sprintf(
		"nkp is starting: it has waited for %s since %s; what was installed before stays in force", w.what,
		w.since.UTC().Format(time.RFC3339))
	w.mu.Unlock()
	http.Error(out, text, http.StatusServiceUnavailable)
}
