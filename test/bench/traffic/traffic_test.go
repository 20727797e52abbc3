//go:build linux

package traffic

import (
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

func serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go Serve(l) // ends with the listener
	return l.Addr().String()
}

func TestRun(t *testing.T) {
	targets := []string{serve(t), serve(t)}
	for _, connect := range []bool{true, false} {
		r, err := run(Options{Targets: targets, Clients: 4, Duration: 500 * time.Millisecond, Connect: connect})
		if err != nil {
			t.Fatal(err)
		}
		if r.Done == 0 || r.Failed > 0 || r.P50 <= 0 || r.P99 < r.P50 || r.Second < 0.5 {
			t.Errorf("connect %t: %+v", connect, r)
		}
	}
}

// In turns both sides get as many requests, and each request counts for its side.
func TestAgainst(t *testing.T) {
	slow, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slow.Close() })
	go Serve(delayed{slow}) // ends with the listener

	for _, connect := range []bool{true, false} {
		r, err := run(Options{Targets: []string{slow.Addr().String()}, Against: []string{serve(t)}, Clients: 2, Duration: 500 * time.Millisecond, Connect: connect})
		if err != nil {
			t.Fatal(err)
		}
		if a := r.Against; a == nil || r.Done == 0 || r.Done-a.Done > 2 || a.Done > r.Done || r.P50 < delay {
			t.Errorf("connect %t: %+v against %+v", connect, r, r.Against)
		}
	}
}

// Where all clients turn together, each side has its turns as often and at least as long as asked. Every request counts in a turn of
// its side, and the CPU time of the process that is watched is that of all its threads.
func TestTurns(t *testing.T) {
	const turn = 400 * time.Millisecond
	o := Options{Targets: []string{serve(t)}, Against: []string{serve(t)}, Clients: 2, Duration: 2*turn + turn/2, Connect: true, Turn: turn, Watch: os.Getpid()}
	r, err := run(o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Turns) == 0 || len(r.Turns) != len(r.Against.Turns) {
		t.Fatalf("%d turns against %d", len(r.Turns), len(r.Against.Turns))
	}
	for _, side := range []*Result{&r, r.Against} {
		done := 0
		for i, v := range side.Turns {
			done += v.Done
			if v.Second < turn.Seconds() || v.CPU <= 0 || v.CPU > v.Second*1e6*float64(runtime.NumCPU()) {
				t.Errorf("turn %d: %+v", i, v)
			}
		}
		if done == 0 || done != side.Done || side.Failed > 0 {
			t.Errorf("%d requests in turns; %+v", done, side)
		}
	}
	for what, spoil := range map[string]func(*Options){
		"nothing to turn to": func(o *Options) { o.Against = nil },
		"nobody to watch":    func(o *Options) { o.Watch = 1 << 30 },
	} {
		o := o
		spoil(&o)
		if _, err := run(o); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// Blocks arrive whole, in turns over connections that are kept.
func TestBlocks(t *testing.T) {
	var targets [2][]string
	for i := range targets {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go Sink(l) // ends with the listener
		targets[i] = []string{l.Addr().String()}
	}
	r, err := run(Options{Targets: targets[0], Against: targets[1], Clients: 1, Duration: time.Second, Blocks: true, Turn: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range r.Turns { // no more than memory moves: 100 GB/s
		if u := r.Against.Turns[i]; v.Done == 0 || u.Done == 0 || v.Rate() > 1e5 || r.Failed > 0 {
			t.Errorf("turn %d: %+v against %+v, %d failed", i, v, u, r.Failed)
		}
	}
	if len(r.Turns) == 0 {
		t.Error("no turns")
	}
	// Who hangs up ends the run, with the reason.
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	o := Options{Targets: []string{l.Addr().String()}, Against: targets[1], Clients: 1, Duration: 24 * time.Hour, Blocks: true, Turn: 20 * time.Millisecond}
	if _, err := run(o); err == nil {
		t.Error("no error from a server that hangs up")
	}
}

// delay is what delayed adds, in microseconds.
const delay = 5000

// delayed accepts connections whose reads are delayed.
type delayed struct{ net.Listener }

func (d delayed) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	return delayedConn{c}, err
}

type delayedConn struct{ net.Conn }

func (c delayedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(delay * time.Microsecond)
	return n, err
}

// Who reaches nobody says so, and counts no connection.
func TestRunFails(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens there now
	for _, connect := range []bool{true, false} {
		r, err := run(Options{Targets: []string{l.Addr().String()}, Clients: 2, Duration: 20 * time.Millisecond, Connect: connect})
		if err == nil || r.Done > 0 || r.Failed == 0 {
			t.Errorf("connect %t: %+v, %v", connect, r, err)
		}
	}
}

func TestArgs(t *testing.T) {
	o := Options{Targets: []string{"10.0.0.1:80", "10.0.0.2:80"}, Clients: 8, Duration: time.Second, Connect: true, Against: []string{"10.0.0.3:80"},
		Turn: 100 * time.Millisecond, Watch: 42}
	want := []string{"-to", "10.0.0.1:80,10.0.0.2:80", "-against", "10.0.0.3:80", "-clients", "8", "-for", "1s", "-connect=true", "-blocks=false", "-turn", "100ms", "-watch", "42"}
	if got := o.Args(); !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}
