package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/conntrack"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// report describes the node for a bug report. It does not wait for the agent's loop, and for the switch not
// long.
func (a *Agent) report(ctx context.Context) *api.Report {
	platform := runtime.GOOS + "/" + runtime.GOARCH + " " + runtime.Version()
	r := &api.Report{Version: Version, Platform: platform}
	kernel, _ := os.ReadFile("/proc/version") // on Linux
	r.Uname = string(kernel)
	if r.Log = "not kept by nkp: the log is in the event log\n"; a.recentLog != nil {
		r.Log = a.recentLog.String()
	}
	if a.configz != nil {
		r.Configuration = a.configz()
	}
	if sw := a.main.switchNow(); sw != nil {
		r.Database = DescribeSwitch(*sw)
		soon, cancel := context.WithTimeout(ctx, countersWait)
		defer cancel()
		r.Conntrack, _, _ = a.main.bridge.Asked(soon)
	} else if fill, err := conntrack.Usage(); err == nil {
		r.Conntrack = fill
	} else {
		r.Conntrack = err.Error()
	}
	return r
}

// DescribeSwitch returns the rows that nkp reads of the database, one a line. Of external_ids and
// other_config it has only what nkp uses, because others may keep anything there.
func DescribeSwitch(sw ovsdb.Switch) string {
	var b strings.Builder
	ports, controllers := sw.Ports, sw.Controllers
	sw.Ports, sw.Controllers, sw.ExternalIDs, sw.SystemIDs = nil, nil, nil, nil
	fmt.Fprintf(&b, "Bridge %+v\n", sw)
	for _, c := range controllers {
		fmt.Fprintf(&b, "Controller %+v\n", c)
	}
	for _, p := range ports {
		fmt.Fprintf(&b, "Port and Interface %+v\n", p)
	}
	return b.String()
}

// RecentLog is a Writer that keeps the newest lines of a log. The zero RecentLog is ready.
type RecentLog struct {
	mu   sync.Mutex // protects text: loggers write from any goroutine
	text []byte
}

// recentLogSize is how much a RecentLog keeps, in bytes.
const recentLogSize = 256 << 10

// Write appends to the log. It does not fail.
func (l *RecentLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text = append(l.text, b...); len(l.text) > 2*recentLogSize {
		l.text = append(l.text[:0], l.newest()...)
	}
	return len(b), nil
}

// newest returns the newest whole lines.
func (l *RecentLog) newest() []byte {
	if more := len(l.text) - recentLogSize; more > 0 {
		_, rest, _ := bytes.Cut(l.text[more-1:], []byte("\n"))
		return rest
	}
	return l.text
}

// String returns the newest lines.
func (l *RecentLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.newest())
}
