//go:build linux

package packets

import (
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/internal/testbed"
)

// A SYN to a ClusterIP meets its Service before the connection tracker (table 3). What the tracker knows of the connection
// must count all the same.

// A SYN that the client sends again goes where the first one went, although other endpoints are in force by then.
func TestOpeningAgain(t *testing.T) {
	t.Parallel()
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	c.servePods(t)
	first, second := c.remotes[0], c.pods[1]
	client := c.pods[0]
	for _, f := range []struct {
		to       string
		old, new any
		route    []string
	}{
		{"40.0.0.1:80", slice(s4, 8080, at(first.IP4)), slice(s4, 8080, at(second.IP4)), []string{client.IP4.String() + "/32"}},
		{"[fd00:40::1]:80", slice(s6, 8080, at(first.IP6)), slice(s6, 8080, at(second.IP6)), []string{client.IP6.String() + "/128"}},
	} {
		c.put(f.old)
		c.settle()
		silence := append([]string{"ip", "route", "add", "blackhole"}, f.route...)
		_, err := c.Exec(first.Host, silence...)
		must(t, err)
		type result struct {
			testbed.Answer
			error
		}
		answer := make(chan result)
		go func() {
			conn, err := client.Hold(c.ctx, f.to, testbed.DialOptions{Timeout: testbed.Patient(20 * time.Second)}) // five SYNs
			if err != nil {
				answer <- result{error: err}
				return
			}
			defer conn.Close()
			answer <- result{Answer: testbed.Answer{Pod: conn.Who, Client: conn.Client}}
		}()
		time.Sleep(200 * time.Millisecond) // the first SYN is there, and nobody can answer it
		c.put(f.new)
		c.settle()
		c.ask(t, c.pods[2%len(c.pods)].Host, "tcp", f.to, second.Name)
		silence[2] = "del"
		_, err = c.Exec(first.Host, silence...)
		must(t, err)
		if r := <-answer; r.error != nil || r.Pod != first.Name {
			t.Errorf("%s: the SYN sent again was answered by %q, %v; want %s", f.to, r.Pod, r.error, first.Name)
		}
	}
}

// A client that lost a connection without a word opens it anew from the same port.
func TestOpeningAfterALoss(t *testing.T) {
	t.Parallel()
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	c.servePods(t)
	c.put(slice(s4, 8080, at(c.pods[1].IP4), at(c.remotes[0].IP4)), slice(s6, 8080, at(c.pods[1].IP6), at(c.remotes[0].IP6)))
	c.settle()
	client := c.pods[0]
	for to, vip := range map[string]string{"40.0.0.1:80": "40.0.0.1/32", "[fd00:40::1]:80": "fd00:40::1/128"} {
		for i := range 4 {
			o := testbed.DialOptions{LocalPort: 21000 + i, Reset: true}
			conn, err := client.Hold(c.ctx, to, o)
			must(t, err)
			_, err = c.Exec(client.Host, "ip", "route", "add", "blackhole", vip)
			must(t, err)
			must(t, conn.Close())
			_, err = c.Exec(client.Host, "ip", "route", "del", "blackhole", vip)
			must(t, err)
			o.Timeout = testbed.Patient(10 * time.Second)
			again, err := client.Hold(c.ctx, to, o)
			if err != nil {
				t.Errorf("%s, from port %d again: %v", to, o.LocalPort, err)
				continue
			}
			must(t, again.Close())
		}
	}
}

// The same port again and again, closed in order or by a reset.
func TestOpeningFromOnePort(t *testing.T) {
	t.Parallel()
	s4, s6 := service("web4", "40.0.0.1"), service("web6", "fd00:40::1")
	c := start(t, s4, s6)
	c.servePods(t)
	c.put(slice(s4, 8080, at(c.pods[1].IP4), at(c.remotes[0].IP4)), slice(s6, 8080, at(c.pods[1].IP6), at(c.remotes[0].IP6)))
	c.settle()
	for _, to := range []string{"40.0.0.1:80", "[fd00:40::1]:80"} {
		for _, reset := range []bool{false, true} {
			o := testbed.AskOptions{DialOptions: testbed.DialOptions{LocalPort: 22000, Reset: reset}}
			for i := range 30 {
				if _, err := c.pods[0].AskWith(c.ctx, "tcp", to, o); err != nil {
					t.Errorf("%s, reset %t, connection %d: %v", to, reset, i, err)
				}
			}
		}
	}
}
