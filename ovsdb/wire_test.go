package ovsdb

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A server that reads nothing holds up nobody who asks it, and the session ends.
func TestServerReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // without a buffer
		defer far.Close()
		s := newSession(near, time.Second)
		defer s.close()
		var reply []any
		if err := s.call(t.Context(), "echo", []any{"x"}, &reply); !errors.Is(err, errLost) {
			t.Error(err)
		}
		<-s.lost
	})
}

// A server that keeps the connection and answers nothing is noticed after Options.ProbeInterval and
// Options.Timeout, not earlier.
func TestServerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{ProbeInterval: 10 * time.Second, Timeout: 5 * time.Second}
		c := fakeServer{instead: map[string]string{"echo": ""}}.over(t, o)
		connected := func(want bool) {
			t.Helper()
			synctest.Wait()
			if got := c.Connected(); got != want {
				t.Errorf("connected: %t, %v", got, c.LastError())
			}
		}
		time.Sleep(o.ProbeInterval + o.Timeout - time.Nanosecond)
		connected(true)
		time.Sleep(time.Nanosecond)
		connected(false)
		if since, why := c.Away(); !since.Equal(time.Now()) || !errors.Is(why, errSilent) {
			t.Errorf("away since %v: %v", since, why)
		}
	})
}

// Changed delivers a value after an update has changed the snapshot, none before, and none after an update
// that changes nothing.
func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		updates := make(chan string)
		defer close(updates)
		c := fakeServer{then: func(conn net.Conn) {
			for ofport := range updates {
				row := `{"Interface":{"` + fakeIface + `":{"modify":{"ofport":` + ofport + `}}}}`
				says(`{"id":null,"method":"update2","params":["nkp",` + row + `]}`)(conn)
			}
		}}.over(t, Options{})
		changed := func() bool {
			time.Sleep(time.Minute) // some probes
			select {
			case <-c.Changed():
				return true
			default:
				return false
			}
		}
		if changed() {
			t.Error("a change before anything changed")
		}
		updates <- "11"
		if changed() {
			t.Error("a change after an update that changes nothing")
		}
		updates <- "12"
		if !changed() || changed() {
			t.Error("no change after an update, or two")
		}
		s := c.Switch()
		p, ok := s.PortByNumber(12)
		if !ok || p.Name != "pod-a" || p.Tag != 7 || len(p.Trunks) != 2 || len(p.IPs) != 1 || s.FailMode != "secure" || !c.Connected() {
			t.Errorf("%+v; %v", s, c.LastError())
		}
	})
}
