package httpguard

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An address that is taken is said once, and tried again every few seconds until it is free.
func TestTakenAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	at := taken.Addr().String()
	synctest.Test(t, func(t *testing.T) {
		told := 0
		l := &Listener{
			Serves: "answers", At: at, OnFailure: func(error) { told++ },
			Guard:   New(Limits{Conns: 9, Serving: 9}, slog.New(slog.DiscardHandler)),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(10*retry + retry/2) // between two attempts
		f := l.Failure()
		if told != 1 || l.Addr() != "" || !strings.Contains(f, "answers at "+at+": ") || !strings.Contains(f, "in use") {
			t.Errorf("told %d times, listens at %q: %s", told, l.Addr(), f)
		}

		taken.Close()
		time.Sleep(retry / 2) // until the next one
		c, err := net.Dial("tcp", at)
		for i := 0; i < 1_000_000 && err != nil; i++ { // no time passes in the bubble until it listens
			runtime.Gosched()
			c, err = net.Dial("tcp", at)
		}
		must(t, err)
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		text, err := io.ReadAll(c)
		if !strings.HasSuffix(string(text), "\r\n\r\nok") || l.Addr() != at || l.Failure() != "" {
			t.Errorf("at %q, %q: %q, %v", l.Addr(), l.Failure(), text, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
