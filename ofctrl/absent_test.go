//go:build linux

package ofctrl

import (
	"bytes"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// lockedBuffer may be written by the client while the test reads.
type lockedBuffer struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// However long a switch on this machine was away, it is found as soon as it listens, and its absence is logged once.
func TestSwitchComesBackAfterAWhile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "br.mgmt")
	var log lockedBuffer
	c := NewClient(Target{Network: "unix", Address: path}, ClientOptions{Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}})
	go c.Run(t.Context()) // ends with the test
	time.Sleep(2 * time.Second)
	if n := strings.Count(log.String(), "OpenFlow connection failed"); n != 1 {
		t.Errorf("the absence is logged %d times:\n%s", n, log.String())
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begin := time.Now()
	l.(*net.UnixListener).SetDeadline(begin.Add(5 * time.Second))
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if took := time.Since(begin); took > 3*time.Second { // far less than the pause of 15 s for a switch that does not answer
		t.Errorf("found after %v", took)
	}
}
