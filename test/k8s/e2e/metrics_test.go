package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// metric returns the sum of all series of the agent's metrics that begin so.
func (n *node) metric(series string) (sum float64, err error) {
	_, text, err := n.scrape("http", "/metrics", "")
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, series) {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:len(line)-1], 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("%s is not served", series)
	}
	return sum, nil
}

// atLeast fails unless a metric has come to some value.
func (n *node) atLeast(series string, want float64) error {
	got, err := n.metric(series)
	if err == nil && got < want {
		err = fmt.Errorf("%s is %v, want at least %v", series, got, want)
	}
	return err
}

// The real controller says when a pod changed: from there to its being in force is measured. Requests to the API server count.
func TestMetrics(t *testing.T) {
	began := time.Now() // before anything that is measured
	c, client, web, _ := newStory(t)
	c.eventually("the API server answers", func() error { return c.atLeast("nkp_source_answers", 1) })
	c.eventually("requests are counted", func() error { return c.atLeast(`rest_client_requests_total{code="200"`, 4) })
	const latency = `kubeproxy_network_programming_duration_seconds`
	before, err := c.metric(latency + `_count{ip_family="IPv4"}`)
	must(t, err)
	c.createPod(client, "web")
	c.eventually("a new pod is asked", func() error { return c.answers(web[0].Host, web4, append(web, client)...) })
	c.eventually("its latency is measured", func() error { return c.atLeast(latency+`_count{ip_family="IPv4"}`, before+1) })
	if sum, err := c.metric(latency + `_sum{ip_family="IPv4"}`); err != nil || sum <= 0 || sum > (before+1)*(time.Since(began).Seconds()+1) {
		t.Errorf("latencies come to %v s (%v)", sum, err)
	} else {
		t.Logf("%v s for %v changes, whose times the controller gives in whole seconds", sum, before+1)
	}
}
