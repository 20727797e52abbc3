//go:build linux

package packets

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/testbed"
	"github.com/nkp-proxy/nkp/test/wait"
)

// A pod that sends more packets than may be refused takes no other pod's refusals, and not those of clients outside.
func TestRefusalsAreShared(t *testing.T) {
	c := newCluster(t, testbed.Options{}, "--service-cidr", "40.0.0.0/24", "--reject-rate", "80")
	none := service("none", "40.0.0.1", protocol(v1.ProtocolUDP), exposed(30080))
	c.put(none, slice(none, 8080))
	c.begin()

	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	var sent atomic.Int64
	flood, err := c.pods[0].DialUDP(ctx, "40.0.0.1:80", testbed.DialOptions{})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, _ = flood.Write([]byte("flood")) // an error is the refusal of an earlier one
			sent.Add(1)
		}
	}()
	defer func() { stop(); <-done; flood.Close() }()
	flooded := func() {
		t.Helper()
		from := sent.Load()
		wait.For(t, "the flood", func() bool { return sent.Load() > from+1000 })
	}

	const asked = 10
	for name, from := range map[string]struct {
		host *testbed.Host
		to   string
	}{
		"another pod": {c.pods[1].Host, "40.0.0.1:80"},
		"outside":     {c.External, hostPort(testbed.NodeIP4, 30080)},
	} {
		flooded()
		for i := range asked {
			conn, err := from.host.DialUDP(c.ctx, from.to, testbed.DialOptions{})
			must(t, err)
			must(t, conn.SetDeadline(time.Now().Add(wait.Limit)))
			_, err = conn.Write([]byte("hello"))
			must(t, err)
			if _, err = conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("%s: datagram %d of %d is not refused: %v", name, i+1, asked, err)
			}
			conn.Close()
		}
	}
	flooded()
	stop()
	<-done
	c.eventually("each packet counted as answered or above the rate", func() error {
		s, err := c.scrape()
		if err != nil {
			return err
		}
		v := s.values
		answered, above := v[`nkp_rejected_packets_total{result="answered"}`], v[`nkp_dropped_packets_total{reason="refusal_rate_limit"}`]
		if all := v[`nkp_dropped_packets_total{reason="no_endpoint"}`]; answered+above != all || above < 1000 {
			return fmt.Errorf("%v answered, %v above the rate, of %v", answered, above, all)
		}
		return nil
	})
}
