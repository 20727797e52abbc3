package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/test/wait"
)

// The agent's pipe is for SYSTEM and Administrators only, there is one agent for a pipe, and it goes with the agent.
func TestPipe(t *testing.T) {
	const path = `\\.\pipe\nkp-agent-test`
	l, err := listen(path)
	must(t, err)
	accepted := make(chan error, 2)
	go func() {
		for { // ends when l is closed
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, err = io.WriteString(c, "hello")
			c.Close()
			accepted <- err
		}
	}()

	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	must(t, err)
	// Windows says FA (all of a file) where GA (all) was asked for.
	if got := strings.ReplaceAll(sd.String(), ";FA;", ";GA;"); got != onlyAdministrators {
		t.Errorf("security descriptor %s, want %s", got, onlyAdministrators)
	}

	c, err := api.Dial(t.Context(), path)
	must(t, err)
	text, err := io.ReadAll(c)
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	if string(text) != "hello" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
	c.Close()
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "another nkp is running") {
		t.Errorf("a second agent: %v", err)
	}
	l.Close()
	if api.Listens(path) == nil {
		t.Error("the pipe of an agent that has ended still answers")
	}
}

// TestPipeTaken checks that the agent goes on without its pipe while another user's program holds the name, listens when it is
// free, and that clients do not believe the other program. Windows lets only administrators make a pipe for another owner,
// as this test does.
func TestPipeTaken(t *testing.T) {
	const path = `\\.\pipe\nkp-agent-test-taken`
	foreign := foreignPipe(t, path, "O:S-1-5-21-1-2-3-1001D:P(A;;GA;;;WD)")
	var log syncBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	a := &Agent{set: Settings{Socket: path}, log: logger, events: apiserver.NewLogRecorder("node", slog.New(slog.DiscardHandler)), asks: make(chan func())}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.serve(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	wait.NoError(t, "the log says who has the name", func() error {
		if strings.Contains(log.String(), "cannot listen on "+strings.ReplaceAll(path, `\`, `\\`)) && strings.Contains(log.String(), "belongs to the user S-1-5-21-1-2-3-1001") {
			return nil
		}
		return fmt.Errorf("%d agents ended; the log has\n%s", len(done), &log)
	})
	if _, err := api.NewCaller(path).Status(t.Context()); err == nil || !strings.Contains(err.Error(), "belongs to the user S-1-5-21-1-2-3-1001: it is not nkp's") {
		t.Errorf("status from a stranger: %v", err)
	}
	if api.Listens(path) == nil {
		t.Error("a stranger's pipe is taken for a running agent's")
	}
	foreign()
	wait.For(t, "the agent listens", func() bool {
		return api.Listens(path) == nil && strings.Contains(log.String(), "the socket could be made")
	})
	if n := strings.Count(log.String(), "cannot listen"); n != 1 {
		t.Errorf("log:\n%s", &log)
	}
}

// foreignPipe makes a pipe with one instance that says something to each client, and returns what ends it.
func foreignPipe(t *testing.T, path, sddl string) (end func()) {
	t.Helper()
	sd, err := windows.SecurityDescriptorFromString(sddl)
	must(t, err)
	sa := windows.SecurityAttributes{SecurityDescriptor: sd}
	sa.Length = uint32(unsafe.Sizeof(sa))
	name, err := windows.UTF16PtrFromString(path)
	must(t, err)
	h, err := windows.CreateNamedPipe(name, windows.PIPE_ACCESS_DUPLEX|windows.FILE_FLAG_FIRST_PIPE_INSTANCE, windows.PIPE_TYPE_BYTE, 1, 4096, 4096, 0, &sa)
	must(t, err)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			if err := windows.ConnectNamedPipe(h, nil); err == nil || errors.Is(err, windows.ERROR_PIPE_CONNECTED) {
				var n uint32
				windows.WriteFile(h, []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), &n, nil)
				for b := make([]byte, 4096); windows.ReadFile(h, b, &n, nil) == nil; { // until the client closes
				}
			}
			windows.DisconnectNamedPipe(h)
		}
		windows.CloseHandle(h)
	}()
	return sync.OnceFunc(func() {
		stop.Store(true)
		most := wait.Limit
		if c, err := winio.DialPipe(path, &most); err == nil { // ConnectNamedPipe returns
			c.Close()
		}
		<-done
	})
}

// syncBuffer is a buffer for one writer and one reader.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *syncBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

// A pipe's name is checked before the agent starts.
func TestPipeName(t *testing.T) {
	for path, good := range map[string]bool{`\\.\pipe\nkp`: true, `\\.\PIPE\x\y`: true, `\\.\pipe\`: false, `C:\nkp.sock`: false, "/run/nkp/nkp.sock": false} {
		if err := api.CheckSocket(path); (err == nil) != good {
			t.Errorf("%s: %v", path, err)
		}
	}
}
