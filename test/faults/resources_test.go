//go:build linux

package faults

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/test/wait"
)

// resources are what an agent holds.
type resources struct {
	pid, goroutines, files int
	heap                   int // live bytes after a collection
	resident               int // bytes
}

func (r resources) String() string {
	return fmt.Sprintf("pid %d: %d goroutines, %d files, %d KiB of live heap, %d KiB resident", r.pid, r.goroutines, r.files, r.heap>>10, r.resident>>10)
}

// resources asks the running agent and the kernel. Goroutines come and go; the least of ten looks counts.
func (c *cluster) resources() (r resources, err error) {
	p, err := c.running()
	if err != nil {
		return r, err
	}
	r.pid = p.Cmd.Process.Pid
	heap := regexp.MustCompile(`# HeapAlloc = (\d+)`)
	for i := range 10 {
		text, err := c.ask("/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			return r, err
		}
		m := heap.FindStringSubmatch(text)
		if m == nil {
			return r, fmt.Errorf("no HeapAlloc in the heap profile: %.200s", text)
		}
		live, _ := strconv.Atoi(m[1])
		profile, err := c.ask("/debug/pprof/goroutine?debug=1")
		if err != nil {
			return r, err
		}
		_, total, _ := strings.Cut(profile, "total ")
		total, _, _ = strings.Cut(total, "\n")
		n, err := strconv.Atoi(total)
		if err != nil {
			return r, fmt.Errorf("goroutine profile: %w", err)
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.pid))
		if err != nil {
			return r, err
		}
		if i == 0 {
			r.heap, r.goroutines, r.files = live, n, len(files)
		}
		r.heap, r.goroutines, r.files = min(r.heap, live), min(r.goroutines, n), min(r.files, len(files))
	}
	r.resident, err = resident(r.pid, "VmRSS:")
	return r, err
}

// resident is how much memory a process has (VmRSS:), or had at most (VmHWM:), in bytes.
func resident(pid int, line string) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rss, _ := strings.Cut(string(status), line)
	number, _, _ := strings.Cut(strings.TrimSpace(rss), " ")
	kb, err := strconv.Atoi(number)
	return kb << 10, err
}

// ask asks the agent's metrics listener from the node.
func (c *cluster) ask(path string) (string, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: c.Node.DialContext}
	client := http.Client{Timeout: wait.Limit, Transport: transport}
	res, err := client.Get("http://" + metricsAddr + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, res.Status, body)
	}
	return string(body), err
}

// noise is the live heap that may come with the same state: buffers and maps that have grown to their bounds.
const noise = 8 << 20

// hasNotGrown waits until the agent, at rest, holds no more than before. A goroutine or a file may be at work just now; what leaks
// stays.
func (c *cluster) hasNotGrown(t *testing.T, when string, before resources) {
	t.Helper()
	wait.NoError(t, "the agent to hold no more than before, "+when, func() error {
		after, err := c.resources()
		switch {
		case err != nil:
			return err
		case after.goroutines > before.goroutines+3:
			return fmt.Errorf("%d goroutines, before %d", after.goroutines, before.goroutines)
		case after.files > before.files+3:
			return fmt.Errorf("%d open files, before %d", after.files, before.files)
		case after.heap > before.heap+noise:
			return fmt.Errorf("%d KiB of live heap, before %d", after.heap>>10, before.heap>>10)
		}
		t.Logf("%s: %s", when, after)
		return nil
	})
}
